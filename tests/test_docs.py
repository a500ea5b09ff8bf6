"""The documentation says what the program does: help texts, settings, commands, routes."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from realchar.cli import build_parser
from realchar.settings import Settings
from tools.docs import documents, rendered, settings_table

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER_ONLY = {"test", "check", "lint", "format"}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse words its help differently in other versions")
@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_docs_generated_parts_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == rendered(path), "run: python -m tools.docs"


def test_docs_explain_every_setting() -> None:
    rows = [row.split(" | ") for row in settings_table().splitlines()[2:]]
    assert all(len(row) == 3 and row[2].strip(" |") for row in rows)


def commands() -> list[tuple[str, str]]:
    """Return (document, command line) for each command in an indented or fenced block."""
    found = []
    for path in documents():
        blocks = re.findall(r"^```(?:bash|sh|)\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for line in "".join(blocks).splitlines():
            match = re.match(r"(?:python3? launch\.py|realchar)\b(.*)", line.split("  #")[0].strip())
            if match:
                found.append((path.name, match[1].strip()))
    return found


def test_docs_hold_commands() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize(("document", "command"), commands())
def test_docs_commands_are_understood(document: str, command: str) -> None:
    words = shlex.split(command)
    if not words or words[0] in LAUNCHER_ONLY:
        return
    args = build_parser().parse_args(words)
    picture = getattr(args, "input", None)
    if picture is not None and str(picture).startswith("ui"):
        assert (ROOT / picture).exists()


def test_docs_name_every_route() -> None:
    from realchar.api import create_router

    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    router = create_router(SimpleNamespace(settings=Settings.load()))  # type: ignore[arg-type]
    for route in router.routes:
        path = route.path  # type: ignore[attr-defined]
        for method in route.methods:  # type: ignore[attr-defined]
            assert re.search(rf"`{method}[^`]* {re.escape(path)}", text), f"docs/api.md lacks {method} {path}"
