"""`realchar ui`: serve the browser interface, which runs from the checkout."""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import suppress
from pathlib import Path

from realchar.catalog import load_base
from realchar.errors import InvalidInput, ModelError
from realchar.requests import check_blocks
from realchar.settings import Settings, project_root


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("ui", help="serve the browser interface")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1: this machine only)")
    parser.add_argument("--port", type=int, help="port to listen on (default 7860)")
    parser.add_argument("--data", type=Path, help="folder of jobs, uploads and results")
    parser.add_argument("--base", help="the base: a diffusers folder; default: the embedded demo base")
    parser.add_argument("--weights", type=Path, help="folder of LoRA versions")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    root = project_root()
    if not (root / "ui" / "serve.py").exists():
        message = f"The interface is not in {str(root)!r}; start it from a checkout with `python launch.py`."
        raise InvalidInput("no_ui", message)
    settings = Settings.load(host=args.host, port=args.port, data=args.data, base=args.base, weights=args.weights)
    with suppress(ModelError):  # the page tells what is wrong with the base
        check_blocks(settings, load_base(settings.base))
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    # The interface stands above the command line, so it is found by name and not imported from here.
    return int(importlib.import_module("ui.serve").serve(settings))
