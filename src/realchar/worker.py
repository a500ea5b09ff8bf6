"""The worker process: claim a job, run it, append its events, finish it. The only place that catches everything."""

from __future__ import annotations

import io
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from realchar.errors import NotFound, RealCharError, StorageError
from realchar.jobs.store import JobStore
from realchar.machine import prepare_engine_process
from realchar.runner import EngineRunner, Runner, Task
from realchar.schema import Degraded, Ended, Event, InEffect, Job, JobState, Saved, Step, Tick, event_json
from realchar.settings import Settings

if TYPE_CHECKING:
    from realchar.engine.together import Make, Work

log = logging.getLogger("realchar.worker")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

PREVIEW_BYTES = 16_000
PREVIEW_LADDER = ((384, 80), (384, 60), (384, 40), (256, 50), (128, 50))  # long edge in pixels, JPEG quality
IDLE_POLL_S = 0.05
STORAGE_RETRY_S = 2.0


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
        """Run a job to its end, whatever happens in it, and others beside it where they may join."""
        tasks: list[Task] = []

        def more() -> tuple[Task, Make] | None:
            found = self._claim_beside(job) if tasks else job
            if found is None:
                return None
            tasks.append(self._task(found))
            return tasks[-1], partial(self._begin, tasks[-1])

        try:
            loop = self.runner.loop(more)
            with closing(loop.run()) as events:
                for task, event in events:
                    if not self._heard(task, event):
                        loop.drop(task)
                        if not task.ended:
                            self._end(task, JobState.CANCELLED, None)
        except Exception as error:  # of the loop itself
            for task in (task for task in tasks if not task.ended):
                self._fail(task, error)
        finally:
            for task in tasks:
                task.held.close()

    def _claim_beside(self, first: Job) -> Job | None:
        """Claim the job whose turn is next, if it may join those under way; none overtakes it.

        What was under way when a worker died is tried again alone, so that it can't take others with it.
        """
        try:
            job = None if self.stop.is_set() or first.attempt > 1 else self.store.next_queued()
            if job is None or job.attempt > 0 or not self.runner.joins(job):
                return None
            return self.store.claim(self.name, job.id)
        except StorageError as error:
            log.warning("%s", error)
            return None

    def _task(self, job: Job) -> Task:
        targets = {role: self.settings.files / f"{secrets.token_urlsafe(16)}.png" for role in roles(job)}
        task = Task(job, targets)
        task.held.enter_context(beating(self.store, job, self.name))
        return task

    def _begin(self, task: Task) -> Work[None]:
        upload = self.store.find_upload(task.job.upload)
        if upload is None or not (self.settings.files / upload.file).exists():
            raise NotFound("upload_gone", "The uploaded picture is no longer here; choose it again.")
        switch = partial(self.store.take_switch, task.job, self.name)
        yield from self.runner.work(task.job, self.settings.files / upload.file, task.targets, switch)

    def _heard(self, task: Task, event: Event | Ended) -> bool:
        """Take note of an event, an end as the job's end; False where no more of it is wanted."""
        if not isinstance(event, Ended):
            task.saved = event if isinstance(event, Saved) else task.saved
            try:
                return self._append(task.job, event)
            except StorageError as error:
                self._fail(task, error)
        elif event.error is not None:
            self._fail(task, event.error)
        elif task.saved is not None:
            self._tell_too_late(task.job)
            self._done(task, task.saved)
        return False

    def _tell_too_late(self, job: Job) -> None:
        """Say that a switch of versions was asked for after the last step had begun."""
        with suppress(StorageError):
            if self.store.take_switch(job, self.name) is not None:
                text = "the version was not switched: the last step had begun"
                self._append(job, Degraded("switch", {}, text))

    def _fail(self, task: Task, error: Exception) -> None:
        if isinstance(error, RealCharError):
            log.warning("Job %s failed: %s", task.job.id, error)
            self._end(task, JobState.FAILED, error.to_json())
            return
        reference = secrets.token_hex(4)
        log.error("Job %s failed unexpectedly, reference %s", task.job.id, reference, exc_info=error)
        message = f"Something unexpected went wrong; details are in the log under {reference}."
        self._end(task, JobState.FAILED, {"code": "unknown", "message": message, "args": {"ref": reference}})

    def _append(self, job: Job, event: Event) -> bool:
        if isinstance(event, Saved):
            return True  # told by `finish`, in one transaction with the files
        if isinstance(event, Tick):
            return self.store.wanted(job, self.name)
        if isinstance(event, InEffect) and event.step is not None:  # tried again, it begins with these
            self.store.set_loras(job, self.name, event.loras)
        preview = event.preview if isinstance(event, Step) else None
        jpeg = None if preview is None else preview_jpeg(preview)
        return self.store.append(job, self.name, event.kind, event_json(event), jpeg)

    def _done(self, task: Task, saved: Saved) -> None:
        task.ended = True
        job, result = task.job, event_json(saved)
        stem = Path(job.source_name).stem[:80] or "picture"
        files = tuple(
            (path.name, "image/png", f"{stem}_realchar_s{job.request.seed}{_SUFFIX[role]}.png")
            for role, path in task.targets.items()
        )
        task.held.close()
        if not self._finish(job, JobState.DONE, result=result, files=files):
            _delete(task.targets)

    def _end(self, task: Task, state: JobState, error: dict[str, Any] | None) -> None:
        task.ended = True
        task.held.close()
        _delete(task.targets)
        self._finish(task.job, state, error=error)

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
