#!/usr/bin/env python3
"""Starts RealCharacters; the first start installs everything into the folder .venv beside this file.

python launch.py                open the app in the browser (realchar ui)
python launch.py convert IN …   any other realchar command: batch, compare, weights, jobs, doctor …
python launch.py test           linters and every test; with arguments: pytest with them
python launch.py lint           the linters only; format: repair the formatting

Where the interpreter that runs this file already has the package, nothing is installed.
"""

import configparser
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

if sys.version_info < (3, 11):  # noqa: UP036 - the reader may have an older one, so this file keeps to 3.6 syntax
    sys.exit(
        f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old for RealCharacters; "
        "install Python 3.11 or newer and start launch.py with it."
    )

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
MARKER = VENV / "realchar-install.json"


def has_package() -> bool:
    """Tell whether this interpreter's own environment (a container, a Space, an active venv) has the package."""
    from importlib import metadata

    if Path(sys.prefix).resolve() == VENV:
        return False  # our own .venv is judged by its marker
    outside = [entry for entry in sys.path if Path(entry or ".").resolve() not in (ROOT, ROOT / "src")]
    found = next(iter(metadata.distributions(name="realchar", path=outside)), None)
    return found is not None and importlib.util.find_spec("realchar") is not None


def venv_version() -> str:
    """Return the version that .venv's Python reports (`3.11`), or "" where it does not run; 15 ms."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output([str(PYTHON), "-I", "-S", "-c", code], encoding="utf-8").strip()
    return ""


def state() -> "dict[str, Any]":
    """Return all that decides what has to be installed: a hash of setup.cfg's requirements, the Python, the place."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    options = [
        config.get("options", key, fallback="") for key in ("install_requires", "python_requires", "package_dir")
    ]
    sections = ("options.extras_require", "options.entry_points")
    tables = [repr(sorted(config.items(name))) for name in sections if config.has_section(name)]
    digest = hashlib.sha256("\n".join(options + tables).encode()).hexdigest()
    return {"requirements": digest, "project": str(ROOT), "python": venv_version()}


def read_marker() -> "dict[str, Any]":
    """Return what is completely installed; {} where nothing is, or where it no longer fits `state()`."""
    try:
        marker = json.loads(MARKER.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return (
        marker if isinstance(marker, dict) and all(marker.get(key) == value for key, value in state().items()) else {}
    )


def missing(wanted: "set[str]", marker: "dict[str, Any]") -> bool:
    """Tell whether an install is due; an extra that failed before is not tried again until setup.cfg changes."""
    return not marker or not wanted <= {*marker["extras"], *marker["failed"]}


def ensure_installed(developing: bool) -> None:
    nvidia = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    wanted = {name for name, needed in (("gpu", nvidia), ("test", developing)) if needed}
    if missing(wanted, read_marker()):
        sys.path.insert(0, str(ROOT))
        from tools import installer

        installer.bring(wanted)


def say(text: str) -> None:
    print(text, flush=True)


def stop(text: str, code: int = 1) -> NoReturn:
    print(text, file=sys.stderr, flush=True)
    raise SystemExit(code)


def child_env(python: Path) -> "dict[str, str]":
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    env.pop("PYTHONHOME", None)
    if python == PYTHON:
        env.update(VIRTUAL_ENV=str(VENV), PATH=str(PYTHON.parent) + os.pathsep + env.get("PATH", ""))
    return env


def run(python: Path, args: "list[str]") -> NoReturn:
    """Become the command (POSIX), or run it and end with its exit code (Windows, which has no exec)."""
    command, env = [str(python), *args], child_env(python)
    sys.stdout.flush()
    if os.name != "nt":
        os.execve(command[0], command, env)
    with subprocess.Popen(command, env=env) as process:
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # the command gets Ctrl-C as well, and ends by itself
                raise SystemExit(process.wait())


def main(args: "list[str]") -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if args and args[0] in ("-h", "--help", "help"):
        say((__doc__ or "").strip())
        raise SystemExit(0)
    developing = bool(args) and args[0] in ("test", "check", "lint", "format")
    python = Path(sys.executable) if has_package() else PYTHON
    if python == PYTHON:
        ensure_installed(developing)
    elif developing and importlib.util.find_spec("pytest") is None:
        stop(f'The tests need more packages; run: "{python}" -m pip install -e "{ROOT}[test]"')
    if developing:
        os.chdir(ROOT)
        run(python, [str(ROOT / "tools" / "check.py"), *args])
    if not args or (args[0].startswith("-") and args[0] != "--version"):
        args = ["ui", *args]
    run(python, ["-P", "-m", "realchar", *args])  # -P: a file in the working directory must not shadow a module


if __name__ == "__main__":
    main(sys.argv[1:])
