"""The command line: `realchar convert | batch | inspect | weights | ui | doctor | bench`. Exit codes: 0 done, 1 failed, 2 input refused."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from realchar import __version__
from realchar.cli import batch, bench, convert, doctor, inspect, ui, weights
from realchar.errors import RealCharError

COMMANDS = (convert, batch, inspect, weights, ui, doctor, bench)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="realchar", description="Turn 2.5D, anime and cartoon character art into realistic photographs."
    )
    parser.add_argument("--version", action="version", version=f"realchar {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.register(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):  # a console with another encoding must not end a job over a file name
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    parser = build_parser()
    args = parser.parse_args(_plain_names(sys.argv[1:] if argv is None else argv))
    try:
        return int(args.run(args))
    except RealCharError as error:
        print(f"realchar: {error.message}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever read our output has gone; no traceback, and none at the end of Python either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("realchar: cancelled, nothing was written.", file=sys.stderr)
        return 1


def _plain_names(argv: list[str]) -> list[str]:
    """Return the arguments with `./` before a file name that begins with a dash, so that it isn't read as an option."""
    return [f"./{item}" if item.startswith("-") and len(item) > 1 and Path(item).exists() else item for item in argv]
