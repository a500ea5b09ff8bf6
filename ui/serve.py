"""Composition: bind the port, show a starting page, build the real page in a thread, swap it in, end cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from realchar.errors import JobError, RealCharError
from realchar.settings import Settings
from ui.gate import LOCAL_HOSTS, Gate, load_key
from ui.texts import STARTING_PAGE

if TYPE_CHECKING:
    from fastapi import FastAPI

Build = Callable[[], "tuple[FastAPI, ASGIApp]"]
STATIC = Path(__file__).parent / "static"
ANSWER_S = 60.0  # a page that has not answered by then is broken
SAMPLES = Path(__file__).parent / "samples"


def serve(settings: Settings) -> int:
    """Run the app until Ctrl+C or SIGTERM; return the exit code."""
    from realchar.service import Service
    from realchar.supervisor import Supervisor

    return run(settings, lambda: Service(settings), lambda _service: Supervisor(settings))


def run(settings: Settings, make_service: Callable[[], Any], make_supervisor: Callable[[Any], Any]) -> int:
    """Run the app around any service; the parts are made once the port is ours."""
    try:
        with contextlib.closing(bind(settings.host, settings.port)) as sock:
            service = make_service()
            supervisor = make_supervisor(service)
            service.base()  # a missing base is told at once, and so is a data folder that can't be used
            key = load_key(settings.data)
            try:
                supervisor.start()
                return _serve_on(sock, settings, service, key)
            finally:
                supervisor.stop()
                service.close()
    except RealCharError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code


def _serve_on(sock: socket.socket, settings: Settings, service: Any, key: bytes) -> int:
    url = address(sock, settings.host)
    holder = Holder(lambda: build_app(settings, service, key), lambda: _announce(url, settings.host))
    config = uvicorn.Config(holder, log_level="warning", timeout_graceful_shutdown=1, server_header=False)
    server = Server(config)
    holder.on_failure = lambda: setattr(server, "should_exit", True)
    with contextlib.suppress(KeyboardInterrupt), _terminate_like_interrupt():
        server.run(sockets=[sock])
    return 1 if holder.failed else 0


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises JobError when the port is taken or not allowed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":  # on Windows this option would let two programs share the port
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        message = (
            f"Port {port} on {host!r} can't be used ({error.strerror or error}); "
            f"close the other program or choose another one with --port {port + 1}."
        )
        raise JobError("port", message, port=port, host=host) from None
    return sock


def address(sock: socket.socket, host: str) -> str:
    port = sock.getsockname()[1]
    shown = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _announce(url: str, host: str) -> None:
    if host not in ("127.0.0.1", "localhost", "::1"):
        print(f"Listening on {host}: everyone who reaches this machine can use the app, it has no login yet.")
    print(f"RealCharacters is ready at {url}", flush=True)


@contextlib.contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """Let SIGTERM end like Ctrl+C: uvicorn raises its signals again after its own shutdown, which would kill us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down without waiting for live streams, which never end by themselves, and without complaints about it."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        asyncio.get_running_loop().call_later(0.3, self._cut)
        await super().shutdown(sockets)

    def _cut(self) -> None:
        for task in list(self.server_state.tasks):
            task.cancel()


class Holder:
    """Answers from the first moment; builds the app in a thread and hands over to it."""

    def __init__(self, build: Build, on_ready: Callable[[], None]) -> None:
        self.failed = False
        self.on_failure: Callable[[], None] = lambda: None
        self._build = build
        self._on_ready = on_ready
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _starting(scope)(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        stop = asyncio.Event()
        task = asyncio.create_task(self._live(stop), name="build the app")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        stop.set()
        if self._app is None:
            task.cancel()  # Ctrl+C while the page is being built
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await send({"type": "lifespan.shutdown.complete"})

    async def _live(self, stop: asyncio.Event) -> None:
        """Build, run the app's own lifespan (Gradio's queue needs it), and hold it until the server ends."""
        try:
            # A daemon thread, so that Ctrl+C does not wait for the import of Gradio.
            inner, app = await _in_daemon_thread(self._build)
            async with inner.router.lifespan_context(inner):
                await _wait_for_answers(app)
                self._app = app
                self._on_ready()
                await stop.wait()
        except Exception:
            self.failed = True
            logging.getLogger(__name__).exception("the page could not be built")
            self.on_failure()


async def _in_daemon_thread(build: Build) -> tuple[FastAPI, ASGIApp]:
    future: Future[tuple[FastAPI, ASGIApp]] = Future()

    def work() -> None:
        try:
            future.set_result(build())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="build", daemon=True).start()
    return await asyncio.wrap_future(future)


async def _wait_for_answers(app: ASGIApp) -> None:
    """Ask for the page and for jobs from inside, so that ready means answered; the first page takes Gradio a while."""
    import httpx

    transport = httpx.ASGITransport(app)
    deadline = time.monotonic() + ANSWER_S
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in ("/", "/api/jobs"):
            while (answer := await client.get(path)).status_code != 200:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{path} answers {answer.status_code}: {answer.text[:300]}")
                await asyncio.sleep(0.5)


def _starting(scope: Scope) -> Response:
    if scope["path"] == "/":
        return HTMLResponse(STARTING_PAGE, 503, {"Retry-After": "1", "Cache-Control": "no-store"})
    message = "The app is starting; try again in a few seconds."
    body: dict[str, Any] = {"code": "starting", "message": message, "args": {}}
    if scope["path"] == "/healthz":
        body |= {"ok": True, "ready": False}
    return JSONResponse(body, 503, {"Retry-After": "1", "Cache-Control": "no-store"})


def build_app(settings: Settings, service: Any, key: bytes) -> tuple[FastAPI, ASGIApp]:
    """Return the FastAPI app and the gate around it; imports Gradio, so it takes seconds."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    os.environ.setdefault("GRADIO_TEMP_DIR", str(settings.data / "gradio"))
    with _without_stub_writing():
        import gradio
    from fastapi import FastAPI
    from starlette.staticfiles import StaticFiles

    from realchar.api import PATHS, create_app
    from ui import blocks, theme

    api = create_app(service)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.mount("/rc/samples", StaticFiles(directory=SAMPLES))
    app.mount("/rc", StaticFiles(directory=STATIC))
    app = gradio.mount_gradio_app(
        app,
        blocks.build(service),
        "/",
        theme=theme.build(),
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        mcp_server=False,
        ssr_mode=False,
        pwa=False,
        show_error=False,
        allowed_paths=[],
        blocked_paths=[str(settings.data), str(settings.weights)],
        max_file_size="1kb",  # pictures come through the app's own route
    )

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        """Keep the routes apart from Gradio, which would answer unknown addresses below /api in its own way."""
        await (api if scope["path"].startswith(PATHS) else app)(scope, receive, send)

    hosts = LOCAL_HOSTS if settings.host in LOCAL_HOSTS else None
    return app, Gate(both, key, blocks.head(service), hosts)


@contextlib.contextmanager
def _without_stub_writing() -> Iterator[None]:
    """Import Gradio without its rewriting of its own `.pyi` files, which is a third of its import time."""
    real = inspect.getfile

    def getfile(thing: Any) -> str:
        if isinstance(thing, type) and thing.__module__.startswith("gradio."):
            raise OSError("no stubs wanted")
        return real(thing)

    inspect.getfile = getfile  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getfile = real
