"""`python -m ui`: start the app in the browser interface."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from realchar.errors import RealCharError
from realchar.settings import Settings
from ui.serve import serve


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ui", description="Start RealCharacters in the browser.")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1: this machine only)")
    parser.add_argument("--port", type=int, help="port to listen on (default 7860)")
    parser.add_argument("--data", type=Path, help="folder of jobs, uploads and results")
    parser.add_argument("--base", help="the base: a diffusers folder")
    parser.add_argument("--weights", type=Path, help="folder of LoRA versions")
    options = vars(parser.parse_args(argv))
    try:
        settings = Settings.load(**options)
    except RealCharError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
