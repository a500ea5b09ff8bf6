"""The worker process: claim a job, run it, append its events, finish it. The only place that catches everything."""

from __future__ import annotations

import gc
import io
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from PIL import Image

from realchar.catalog import load_base
from realchar.convert import convert
from realchar.errors import NotFound, RealCharError, StorageError
from realchar.jobs.store import JobStore
from realchar.machine import prepare_engine_process
from realchar.requests import prepare_options, with_choices
from realchar.schema import Event, Job, JobState, Saved, Stage, Step, Tick, event_json
from realchar.settings import Settings

if TYPE_CHECKING:
    from realchar.engine.pipeline import Engine

log = logging.getLogger("realchar.worker")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

PREVIEW_BYTES = 16_000
PREVIEW_LADDER = ((384, 80), (384, 60), (384, 40), (256, 50), (128, 50))  # long edge in pixels, JPEG quality
IDLE_POLL_S = 0.05
STORAGE_RETRY_S = 2.0


class Runner(Protocol):
    """Turns a job into events; the real one loads the base, tests use a scripted one."""

    def load(self) -> dict[str, Any]: ...
    def run(self, job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event]: ...


class EngineRunner:
    """Holds the engine; the base is loaded once, and again only where a job wants another offload mode."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._engine: Engine | None = None

    def load(self) -> dict[str, Any]:
        """Load the base; returns what the front end shows about it. Raises ModelError or OutOfMemory."""
        from realchar.engine.pipeline import Engine  # torch is imported here, after the queue is already served

        if self._engine is None:
            self._engine = Engine.from_settings(load_base(self.settings.base), self.settings)
        engine = self._engine
        facts = {"base": engine.base.title, "demo": engine.base.demo, "device": engine.device_name}
        return facts | {"offload": engine.mode.value}

    def run(self, job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event]:
        request, settings = job.request, with_choices(self.settings, job.request)
        if not self._fits(settings):
            yield Stage("load")
        engine = self._engine_for(settings)
        engine.budget = settings.budget  # holds from this run on, without loading anything
        options = prepare_options(engine.base, request.size, request.long_edge, settings.max_megapixels)
        yield from convert(engine, request, source, options, settings.weights, targets)

    def _fits(self, settings: Settings) -> bool:
        """Tell whether the engine that is loaded has the offload mode of these settings."""
        engine = self._engine
        return engine is not None and engine.mode is settings.offload.resolved(on_gpu=engine.on_gpu)

    def _engine_for(self, settings: Settings) -> Engine:
        """Return the engine in the settings' offload mode; one in another mode is freed before the base is loaded."""
        from realchar.engine.devices import release
        from realchar.engine.pipeline import Engine

        if self._engine is None or not self._fits(settings):
            if self._engine is not None:
                device = self._engine.family.device
                self._engine = None
                gc.collect()  # else both would be in memory
                release(device)
            self._engine = Engine.from_settings(load_base(settings.base), settings)
        return self._engine


class Worker:
    """Serves one store with one runner until `stop` is set."""

    def __init__(self, settings: Settings, store: JobStore, runner: Runner, name: str) -> None:
        self.settings, self.store, self.runner, self.name = settings, store, runner, name
        self.stop = threading.Event()

    def serve(self) -> None:
        self._load()
        while not self.stop.is_set():
            try:
                job = self.store.claim(self.name)
            except StorageError as error:
                log.warning("%s", error)
                self.stop.wait(STORAGE_RETRY_S)
                continue
            if job is None:
                self.stop.wait(IDLE_POLL_S)
            else:
                self.work(job)

    def _load(self) -> None:
        """Load the base ahead of the first job; a failure is told now and again by each job that needs it."""
        self._tell({"state": "loading"})
        try:
            facts = self.runner.load()
        except RealCharError as error:
            log.error("The base could not be loaded: %s", error)
            self._tell({"state": "down", "error": error.to_json()})
        except Exception:  # told again, with its reference, by each job that needs the base
            log.exception("The base could not be loaded")
            self._tell({"state": "down"})
        else:
            self._tell({"state": "ready", **facts})

    def _tell(self, state: dict[str, Any]) -> None:
        with suppress(StorageError):
            self.store.broadcast("engine", state)

    def work(self, job: Job) -> None:
        """Run one job to its end, whatever happens in it."""
        targets = {role: self.settings.files / f"{secrets.token_urlsafe(16)}.png" for role in roles(job)}
        try:
            with beating(self.store, job, self.name):
                saved = self._run(job, targets)
        except RealCharError as error:
            log.warning("Job %s failed: %s", job.id, error)
            self._end(job, targets, JobState.FAILED, error.to_json())
        except Exception:
            reference = secrets.token_hex(4)
            log.exception("Job %s failed unexpectedly, reference %s", job.id, reference)
            message = f"Something unexpected went wrong; details are in the log under {reference}."
            self._end(
                job, targets, JobState.FAILED, {"code": "unknown", "message": message, "args": {"ref": reference}}
            )
        else:
            if saved is None:
                self._end(job, targets, JobState.CANCELLED, None)
            else:
                self._done(job, saved, targets)

    def _run(self, job: Job, targets: dict[str, Path]) -> Saved | None:
        """Append every event; None when the job is no longer wanted. Leaving the generator frees what it held."""
        upload = self.store.find_upload(job.upload)
        if upload is None or not (self.settings.files / upload.file).exists():
            raise NotFound("upload_gone", "The uploaded picture is no longer here; choose it again.")
        events = self.runner.run(job, self.settings.files / upload.file, targets)
        saved = None
        try:
            for event in events:
                if not self._append(job, event):
                    return None
                saved = event if isinstance(event, Saved) else saved
        finally:
            getattr(events, "close", lambda: None)()
        return saved

    def _append(self, job: Job, event: Event) -> bool:
        if isinstance(event, Saved):
            return True  # told by `finish`, in one transaction with the files
        if isinstance(event, Tick):
            return self.store.wanted(job, self.name)
        preview = event.preview if isinstance(event, Step) else None
        jpeg = None if preview is None else preview_jpeg(preview)
        return self.store.append(job, self.name, event.kind, event_json(event), jpeg)

    def _done(self, job: Job, saved: Saved, targets: dict[str, Path]) -> None:
        result = event_json(saved)
        stem = Path(job.source_name).stem[:80] or "picture"
        files = tuple(
            (path.name, "image/png", f"{stem}_realchar_s{job.request.seed}{_SUFFIX[role]}.png")
            for role, path in targets.items()
        )
        if not self._finish(job, JobState.DONE, result=result, files=files):
            _delete(targets)

    def _end(self, job: Job, targets: dict[str, Path], state: JobState, error: dict[str, Any] | None) -> None:
        _delete(targets)
        self._finish(job, state, error=error)

    def _finish(self, job: Job, state: JobState, **facts: Any) -> bool:
        """Write the end until it works: while the disk is full nothing else can be done either."""
        while True:
            try:
                return self.store.finish(job, self.name, state, **facts)
            except StorageError as error:
                log.warning("%s", error)
                if self.stop.wait(STORAGE_RETRY_S):
                    return False


_SUFFIX = {"stamped": "", "clean": ".clean", "before": ".before"}


def roles(job: Job) -> tuple[str, ...]:
    return ("before", "clean", "stamped") if job.request.stamp else ("before", "clean")


def _delete(targets: dict[str, Path]) -> None:
    for path in targets.values():
        path.unlink(missing_ok=True)


@contextmanager
def beating(store: JobStore, job: Job, worker: str) -> Iterator[None]:
    """Renew the lease from a thread: loading a base or compiling may say nothing for longer than a lease lasts."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(store.lease_s / 4):
            with suppress(StorageError):  # the run itself meets it, too
                store.beat(job, worker)

    thread = threading.Thread(target=beat, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def preview_jpeg(image: Image.Image) -> bytes:
    """Return a JPEG of at most 16 kB, 384 pixels where that fits: it is stored once a step and sent to every watcher."""
    for edge, quality in PREVIEW_LADDER:
        scale = edge / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        buffer = io.BytesIO()
        image.resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=quality)
        if buffer.tell() <= PREVIEW_BYTES:
            break
    return buffer.getvalue()


def _end_with_parent() -> None:
    """End this process when the app that started it is gone: its end of our stdin closes with it."""
    while sys.stdin.buffer.read(1):
        time.sleep(0)
    os._exit(3)


def main(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    prepare_engine_process()
    settings = Settings.load()
    logging.getLogger("realchar").setLevel(settings.log.upper())
    store = JobStore(settings.database, lease_s=settings.lease_s)
    worker = Worker(settings, store, EngineRunner(settings), argv[0])
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole group; the app ends us in order
    worker.serve()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
