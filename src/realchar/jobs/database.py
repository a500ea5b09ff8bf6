"""One SQLite file, opened for a queue: durable writes, one connection under a lock, errors as sentences."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from realchar.errors import StorageError
from realchar.jobs.migrations import migrate


class Database:
    """Thread-safe; every statement takes microseconds, so one connection serves all threads of a process.

    Raises StorageError where the disk is full or the file can't be used.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)
        self._lock = threading.RLock()
        with self._sentences():
            self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
            self.connection.row_factory = sqlite3.Row
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.execute("PRAGMA synchronous=FULL")  # an accepted job survives a power cut
            migrate(self.connection)

    def close(self) -> None:
        with self._lock:
            self.connection.close()

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """Turn SQLite's errors about the disk and the file into ones that say what to do."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise
            if "full" in str(error):
                message = f"The disk of {self._path!r} is full; free some space, and the queue goes on by itself."
                raise StorageError("disk", message, path=self._path) from error
            message = (
                f"The job database {self._path!r} can't be used ({error}); move it away to begin with an empty one."
            )
            raise StorageError("database", message, path=self._path) from error

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._sentences():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # a full disk has rolled it back already
                    self.connection.execute("ROLLBACK")
                raise

    def read(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock, self._sentences():
            return self.connection.execute(sql, values).fetchall()
