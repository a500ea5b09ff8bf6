"""Runs a row's measurement in a fresh process, so that its peaks and limits are its own. No torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from realchar.bench.spec import RowSpec

PACKAGES = Path(__file__).resolve().parents[2]  # where this package was imported from, installed or not


def run_row(spec: RowSpec, timeout_s: float) -> dict[str, Any]:
    """Return the row's facts, with `ok`; where the process crashed, hung or was killed, the reason says so."""
    path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "realchar.bench.child", str(os.getpid())],
            input=spec.to_json(),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
        )
    except subprocess.TimeoutExpired:
        return _failed(f"no result within {timeout_s:g} s; give it more with --row-timeout")
    except OSError as error:
        return _failed(f"no process could be started ({error})")
    if done.returncode:
        return _failed(_end(done.returncode, done.stderr))
    try:
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return _failed("the process ended without a result")
    if not facts["ok"]:
        sys.stderr.write(done.stderr)  # the traceback, where there is one
    return facts


def _end(code: int, stderr: str) -> str:
    if code < 0:
        killed = " (the system does that where RAM runs out)" if code == -9 else ""
        return f"the process was killed by signal {-code}{killed}"
    return f"the process ended with exit code {code}: {(stderr.strip().splitlines() or ['no output'])[-1]}"


def _failed(reason: str) -> dict[str, Any]:
    return {"ok": False, "reason": reason}
