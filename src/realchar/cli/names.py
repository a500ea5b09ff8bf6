"""File names as they come from a command line and as they go to a terminal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def path_argument(text: str) -> Path:
    """Return a path; an empty one, as of an unset variable, would mean the current folder and is refused."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; give a name")
    return Path(text)


def printable(name: str) -> str:
    """Return a name on one line, without what would move the cursor."""
    return "".join(c if c.isprintable() else "?" for c in name)


def say(text: str) -> None:
    """Print what a console may lack characters for: a file name, or an arrow, is no reason to fail."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
