"""Writes what the documentation takes from the program: the help of every command and the table of settings.

    python -m tools.docs

A test fails where the documents differ from it.
"""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import fields
from pathlib import Path

from realchar.cli import build_parser
from realchar.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
WIDTH = "100"  # columns of the help texts


def help_texts() -> dict[str, str]:
    """Return the help of `realchar` and of each of its commands, by the words that ask for it."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        parser = build_parser()
        action = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        texts = {"realchar --help": parser.format_help()}
        texts |= {f"realchar {name} --help": sub.format_help() for name, sub in action.choices.items()}
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return texts


def settings_table() -> str:
    """Return the settings as a Markdown table; the meaning is the comment behind each field."""
    source = (ROOT / "src" / "realchar" / "settings.py").read_text(encoding="utf-8")
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for field in fields(Settings):
        comment = re.search(rf"^    {field.name}: .*#\s*(.+)$", source, re.MULTILINE)
        default = getattr(Settings, field.name)
        shown = "" if default in ("", Path()) else f"`{default}`"
        rows.append(f"| `REALCHAR_{field.name.upper()}` | {shown} | {comment[1] if comment else ''} |")
    return "\n".join(rows) + "\n"


def put(text: str, name: str, content: str) -> str:
    """Return `text` with what stands between the marks of `name` replaced."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}{content}{end}{tail}"


def rendered(path: Path) -> str:
    """Return the document with every generated part as it should be."""
    text = path.read_text(encoding="utf-8")
    for name, help_text in help_texts().items():
        if f"<!-- {name} -->" in text:
            text = put(text, name, f"```text\n$ {name}\n{help_text}```\n")
    if "<!-- settings -->" in text:
        text = put(text, "settings", settings_table())
    return text


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


if __name__ == "__main__":
    for document in documents():
        document.write_text(rendered(document), encoding="utf-8")
