"""Start and end of the app: the port, the starting page, a page that can't be built, signals."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response

from realchar.errors import JobError
from realchar.settings import Settings
from tests.fakes import FakeService, FakeSupervisor
from ui import serve

ROOT = Path(__file__).resolve().parents[1]


def test_taken_port_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve.bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(JobError, match=f"--port {port + 1}"):
            serve.bind("127.0.0.1", port)
        settings = Settings.load({}, port=port, data=tmp_path)
        made: list[Any] = []
        assert serve.run(settings, lambda: made.append(1), FakeSupervisor) == 1
    assert not made  # the port comes first: nothing was started for it
    assert f"Port {port}" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_address_is_one_that_a_browser_opens(host: str) -> None:
    with serve.bind(host, 0) as sock:
        shown = "localhost" if host == "localhost" else "127.0.0.1"
        assert serve.address(sock, host) == f"http://{shown}:{sock.getsockname()[1]}"


def test_starting_page_then_the_app() -> None:
    async def drive() -> None:
        inner, ready = FastAPI(), asyncio.Event()
        first = [503]  # a page that is not there at once

        @inner.get("/")
        def index(response: Response) -> str:
            response.status_code = first.pop() if first else 200
            return "built"

        @inner.get("/api/jobs")
        def jobs() -> list[str]:
            return []

        gate = asyncio.Event()
        holder = serve.Holder(lambda: (time.sleep(0.3), (inner, inner))[1], ready.set)
        messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        sent: list[str] = []

        async def send(message: Any) -> None:
            sent.append(message["type"])
            gate.set()

        lifespan = asyncio.create_task(holder({"type": "lifespan"}, messages.get, send))
        await messages.put({"type": "lifespan.startup"})
        await gate.wait()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(holder), base_url="http://x") as client:
            health = await client.get("/healthz")
            assert (health.status_code, health.json()["ready"], health.json()["code"]) == (503, False, "starting")
            page = await client.get("/")
            assert page.status_code == 503 and "Starting the interface" in page.text
            while not ready.is_set():
                early = await client.get("/api/jobs")
                assert early.status_code == 503
                assert early.json().keys() == {"code", "message", "args"} and early.json()["code"] == "starting"
                await asyncio.sleep(0.05)
            assert not first
            assert (await client.get("/")).json() == "built"
        await messages.put({"type": "lifespan.shutdown"})
        await asyncio.wait_for(lifespan, 5)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(drive())


def test_page_that_can_not_be_built_ends_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_settings: Settings, _service: Any, _key: bytes) -> Any:
        raise RuntimeError("no page today")

    monkeypatch.setattr(serve, "build_app", broken)
    settings = Settings.load({}, port=free_port(), data=tmp_path, weights=tmp_path / "weights")
    assert serve.run(settings, lambda: FakeService(settings), FakeSupervisor) == 1
    assert "no page today" in caplog.text


def test_page_that_never_answers_ends_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bare = FastAPI()
    monkeypatch.setattr(serve, "ANSWER_S", 0.0)
    monkeypatch.setattr(serve, "build_app", lambda *_: (bare, bare))
    settings = Settings.load({}, port=free_port(), data=tmp_path, weights=tmp_path / "weights")
    assert serve.run(settings, lambda: FakeService(settings), FakeSupervisor) == 1
    assert "/ answers 404" in caplog.text


def test_unusable_key_is_a_sentence_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cookie.key").mkdir()
    started: list[Any] = []

    class Never(FakeSupervisor):
        def start(self) -> None:
            started.append(self)

    settings = Settings.load({}, port=free_port(), data=tmp_path, weights=tmp_path / "weights")
    assert serve.run(settings, lambda: FakeService(settings), Never) == 1
    said = capsys.readouterr().err
    assert "cookie.key" in said and said.count("\n") == 1
    assert not started
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".key"] == ["cookie.key"]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals for a child process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["building", "open streams"])
def test_signals_end_cleanly_within_three_seconds(tmp_path: Path, number: signal.Signals, when: str) -> None:
    port = free_port()
    command = [sys.executable, "-m", "tests.fakes", str(port), str(tmp_path), "0.1", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        streams = []
        if when == "building":
            wait_for(f"http://127.0.0.1:{port}/healthz")
        else:
            assert b"ready at" in process.stdout.readline()
            streams = [urllib.request.urlopen(f"http://127.0.0.1:{port}/api/events") for _ in range(3)]
            assert all(stream.read(10) for stream in streams)
        begin = time.monotonic()
        process.send_signal(number)
        said = process.stdout.read().decode()
        assert process.wait(10) == 0
        assert time.monotonic() - begin < 3
        assert said == ""  # no traceback, no complaint
        for stream in streams:
            stream.close()


@pytest.mark.slow
def test_ready_means_answered_and_every_answer_has_one_form(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "tests.fakes", str(port), str(tmp_path), "0.1", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        try:
            assert b"ready at" in process.stdout.readline()
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                check_form(client)
        finally:
            process.terminate()
        assert process.stdout.read() == b""
    assert process.returncode == 0


def check_form(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"ok": True, "ready": True}
    assert client.head("/healthz").status_code == 200
    assert client.get("/").status_code == 200
    assert "/api/jobs" in client.get("/openapi.json").json()["paths"]
    for path in ("/api/nothing", "/api/media/..%2fjobs.sqlite", "/api/", "/api"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert client.request("TRACE", "/api/jobs").json()["code"] == "method"
    deep = client.post("/api/jobs", content=b"[" * 100_000, headers={"content-type": "application/json"})
    assert deep.json()["message"] == "The body is not valid JSON."


def wait_for(url: str) -> None:
    for _ in range(100):
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"{url} did not answer")
