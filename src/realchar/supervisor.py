"""Starts the worker process, restarts it when it dies, and gives its job back; holds the lock of the data folder."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import IO

from realchar.errors import JobError, StorageError, storage_error
from realchar.jobs.cleaning import clean
from realchar.jobs.store import JobStore
from realchar.settings import Settings

log = logging.getLogger("realchar.supervisor")

BACKOFF_S = (0.0, 1.0, 5.0, 15.0, 30.0)  # before the first, second … restart in a row
HEALTHY_S = 60.0  # a worker that lived for so long starts the count anew
LEASE_CHECK_S = 5.0
STORAGE_RETRY_S = 2.0
CLEAN_EVERY_S = 3600.0
DOWN_AFTER = 3  # restarts in a row after which the front end is told that the engine is down


class FolderLock:
    """One app per data folder. The lock belongs to the open file, so it dies with the process, however that ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "app.lock"
        self._file: IO[bytes] | None = None

    def acquire(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = self._path.open("a+b")
        except OSError as error:
            raise storage_error(error, f"The data folder {str(self._path.parent)!r}") from error
        try:
            _lock(file)
        except OSError:
            file.close()
            folder = str(self._path.parent)
            message = f"Another copy of the app uses the data folder {folder!r}; close it or choose another folder."
            raise JobError("busy", message, folder=folder) from None
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _lock(file: IO[bytes]) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


class Supervisor:
    """Keeps one worker process alive. `start` gives back what an earlier app left running; `stop` is orderly."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = FolderLock(settings.data)
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._worker = ""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take the data folder, requeue orphaned jobs, start the worker. Raises JobError when the folder is in use."""
        self._lock.acquire()
        self._store = JobStore(self.settings.database, lease_s=self.settings.lease_s)
        self._store.release()
        self._store.broadcast("engine", {"state": "starting"})
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the worker and queue its job again without counting the attempt."""
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._thread is not None:
            self._thread.join(timeout=5)
            with contextlib.suppress(StorageError):  # the next start gives it back as well
                self._store.release(self._worker, crashed=False)
            self._store.close()
            self._thread = None
        self._lock.release()

    def _watch(self) -> None:
        restarts = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            process = self._spawn()
            self._wait(process)
            if self._stopping.is_set():
                return
            log.warning("The worker has ended with code %s; its jobs go back to the queue.", process.returncode)
            self._insist(lambda: self._store.release(self._worker))
            restarts = 0 if time.monotonic() - began > HEALTHY_S else restarts + 1
            state = {"state": "down" if restarts > DOWN_AFTER else "restarting", "exit": process.returncode}
            self._insist(lambda state=state: self._store.broadcast("engine", state))  # type: ignore[misc]
            self._stopping.wait(BACKOFF_S[min(restarts, len(BACKOFF_S) - 1)])

    def _insist(self, write: Callable[[], object]) -> None:
        """Write until it works: a disk may be full for an hour, and a job that isn't given back then is lost."""
        while not self._stopping.is_set():
            try:
                write()
                return
            except StorageError as error:
                log.warning("%s", error)
                self._stopping.wait(STORAGE_RETRY_S)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Return when the worker ended; end it when its lease ran out twice (once may be a suspended laptop)."""
        suspicious = False
        checked = time.monotonic()
        cleaned = -CLEAN_EVERY_S
        while not self._stopping.wait(0.05) and process.poll() is None:
            try:
                if time.monotonic() - cleaned > CLEAN_EVERY_S:
                    cleaned = time.monotonic()
                    clean(self._store, self.settings)
                if time.monotonic() - checked > LEASE_CHECK_S:
                    checked = time.monotonic()
                    expired = self._store.expired(self._worker)
                    if expired and suspicious:
                        log.warning("The worker is silent for too long; it is ended and started anew.")
                        process.kill()
                    suspicious = expired
            except (StorageError, OSError) as error:
                log.warning("%s", error)

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._worker = f"worker-{secrets.token_hex(6)}"
        environ = {f"REALCHAR_{f.name.upper()}": str(getattr(self.settings, f.name)) for f in fields(self.settings)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "realchar.worker", self._worker],
            # The worker ends when this pipe closes, so it can't outlive an app that was killed.
            stdin=subprocess.PIPE,
            env=os.environ | environ | {"PYTHONUNBUFFERED": "1"},
        )
        return self._process
