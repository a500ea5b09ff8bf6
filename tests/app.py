"""The whole app as a user starts it, in a process of its own, for tests that kill it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[1]
READY_S = 90


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class App:
    """A running app with a client of its own, that keeps its cookie over restarts."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=30)
        self.log = Path(tempfile.mkdtemp()) / "app.log"  # not beside the data, whose disk may be full

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "realchar", "ui", "--port", str(self.port), "--data", str(self.data)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.client.get("/api/stats").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"The app did not start:\n{self.log.read_text(encoding='utf-8')[-3000:]}")

    def workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "realchar.worker" in " ".join(child.cmdline())]

    def kill(self) -> None:
        """End it the hard way; wait until the worker has noticed, as it must."""
        workers = self.workers()
        self.process.kill()
        self.process.wait()
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert not alive, "the worker outlived its app"

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM if os.name == "posix" else signal.CTRL_BREAK_EVENT)
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.client.close()

    def upload(self, picture: Path) -> str:
        answer = self.client.put("/api/uploads", params={"name": picture.name}, content=picture.read_bytes())
        assert answer.is_success, answer.text
        return str(answer.json()["id"])

    def submit(self, upload: str, **settings: Any) -> str:
        answer = self.client.post("/api/jobs", json={"upload": upload, "steps": 12, "cfg": 4, **settings})
        assert answer.is_success, answer.text
        return str(answer.json()["id"])

    def job(self, job: str) -> dict[str, Any]:
        answer = self.client.get(f"/api/jobs/{job}")
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def wait(self, job: str, *states: str, timeout: float = 120) -> dict[str, Any]:
        """Wait until the job is in one of the states."""
        deadline = time.monotonic() + timeout
        while (found := self.job(job))["state"] not in states:
            assert time.monotonic() < deadline, f"job stays {found}\n{self.log.read_text(encoding='utf-8')[-2000:]}"
            time.sleep(0.05)
        return found


@contextmanager
def running(data: Path) -> Iterator[App]:
    app = App(data)
    app.start()
    try:
        yield app
    finally:
        app.stop()
