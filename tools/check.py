"""Runs linters and tests: the commands `test`, `check`, `lint` and `format` of launch.py, which installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launch import run, say, stop
from tools.installer import apt_install

LINTERS = (
    ("ruff format", ["-m", "ruff", "format", "--check", "."]),
    ("ruff check", ["-m", "ruff", "check", "."]),
    ("mypy", ["-m", "mypy"]),
    ("mypy, launcher", ["-m", "mypy", "launch.py", "tools/check.py", "tools/installer.py"]),
    ("lint-imports", ["-c", "from importlinter.cli import lint_imports_command as run; run()"]),
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
BROWSER_PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Microsoft/Edge/Application/msedge.exe",
)


def find_browser() -> str | None:
    """Return the browser of the Chromium family that `CHROMIUM` names or that is installed."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    return found or next((place for place in BROWSER_PLACES if Path(place).exists()), None)


def ensure_browser() -> str:
    browser = find_browser() or (find_browser() if apt_install("chromium") else None)
    if browser is None:
        stop(
            "The browser tests need Chromium, Chrome or Edge: install one (sudo apt-get install chromium), name it in "
            'CHROMIUM, or leave them out: python launch.py test -m "not browser"'
        )
    return browser


def lint() -> list[str]:
    """Run every linter and return the names of those that found something."""
    failed = []
    for name, args in LINTERS:
        say(f"== {name}")
        if subprocess.call([sys.executable, *args]):
            failed.append(name)
    return failed


def main(command: str, args: list[str]) -> NoReturn:
    if command == "format":
        fix = subprocess.call([sys.executable, "-m", "ruff", "check", "--fix", "--quiet", "."])
        raise SystemExit(subprocess.call([sys.executable, "-m", "ruff", "format", "."]) or fix)
    if command == "lint" or not args:
        failed = lint()
        if failed:
            hint = " Repair the formatting with: python launch.py format" if "ruff format" in failed else ""
            stop(f"Failed: {', '.join(failed)}.{hint}")
    if command == "lint":
        raise SystemExit(0)
    if "-m" not in args:
        os.environ["CHROMIUM"] = ensure_browser()
    # setup.cfg leaves slow and browser tests out; the last -m counts, and an empty one selects everything
    run(Path(sys.executable), ["-m", "pytest", "-m", "", *args])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
