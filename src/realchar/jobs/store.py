"""The durable queue and its event log: one SQLite file, shared by the UI process and the workers.

Delivery is at least once. A worker claims a job with one statement and holds it by a lease that `append` and `beat`
renew; every write of a worker names its claim (worker and attempt), so one that lost its job can't touch it any more.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from realchar.jobs.database import Database
from realchar.jobs.rows import EventRow, FileRow, UploadRow, dump, event_row, job_row
from realchar.schema import EditRequest, Job, JobState, LoraRef

WITH_LORAS = "request=json_set(request, '$.loras', json(?))"
MAX_ATTEMPTS = 2  # a job that crashed the worker is tried once more


class JobStore:
    """Thread-safe, and safe between processes. Every call may raise StorageError."""

    def __init__(self, path: Path | str, *, lease_s: float = 15.0, now: Callable[[], float] = time.time) -> None:
        self.lease_s = lease_s
        self.now = now
        self._db = Database(path)

    def close(self) -> None:
        self._db.close()

    # ---- owners: submit, look, cancel

    def submit(self, owner: str, upload: str, source_name: str, request: EditRequest, *, key: str | None = None) -> Job:
        """Queue a job; the same `key` of the same owner returns the job that it made before."""
        job = secrets.token_urlsafe(12)
        with self._db.write() as db:
            made = db.execute(
                "INSERT INTO jobs (id, owner, key, state, request, upload, source_name, created)"
                " VALUES (?, ?, ?, 'queued', ?, ?, ?, ?) ON CONFLICT (owner, key) DO NOTHING",
                (job, owner, key, json.dumps(request.to_json()), upload, source_name, self.now()),
            ).rowcount
            if made:
                self._event(db, owner, job, 0, "job", {"state": "queued"})
            else:
                job = db.execute("SELECT id FROM jobs WHERE owner=? AND key=?", (owner, key)).fetchone()[0]
        found = self.find(job)
        assert found is not None
        return found

    def find(self, job: str, owner: str | None = None) -> Job | None:
        rows = self._db.read("SELECT * FROM jobs WHERE id=? AND owner=coalesce(?, owner)", job, owner)
        return job_row(rows[0]) if rows else None

    def list_jobs(self, owner: str, limit: int = 50) -> list[Job]:
        rows = self._db.read("SELECT * FROM jobs WHERE owner=? ORDER BY seq DESC LIMIT ?", owner, limit)
        return [job_row(row) for row in rows]

    def num_waiting(self, owner: str | None = None) -> int:
        sql = "SELECT count(*) FROM jobs WHERE state IN ('queued', 'running') AND owner=coalesce(?, owner)"
        return int(self._db.read(sql, owner)[0][0])

    def position(self, job: str) -> int:
        """Return how many jobs will be done up to and including this one; 0 when it isn't waiting."""
        sql = "SELECT count(*) FROM jobs WHERE (state='running' OR (state='queued' AND seq <= j.seq)) AND j.state='queued'"
        rows = self._db.read(f"SELECT ({sql}) FROM jobs AS j WHERE id=?", job)
        return int(rows[0][0]) if rows else 0

    def cancel(self, job: str, owner: str) -> bool:
        """Cancel a queued job at once, ask the worker of a running one to stop; False when it had ended already."""
        with self._db.write() as db:
            waiting = db.execute(
                "UPDATE jobs SET state='cancelled', finished=? WHERE id=? AND owner=? AND state='queued'",
                (self.now(), job, owner),
            ).rowcount
            if waiting:
                self._event(db, owner, job, 0, "job", {"state": "cancelled"})
                return True
            return bool(
                db.execute(
                    "UPDATE jobs SET cancelling=1 WHERE id=? AND owner=? AND state='running'", (job, owner)
                ).rowcount
            )

    def switch(self, job: str, owner: str, loras: Sequence[LoraRef]) -> bool:
        """Give a waiting job other LoRA versions, or have its worker take them before the next step; False: it has ended."""
        refs = [asdict(ref) for ref in loras]
        with self._db.write() as db:
            sql = "SELECT state, cancelling FROM jobs WHERE id=? AND owner=?"
            row = db.execute(sql, (job, owner)).fetchone()
            if row is None or row["state"] not in ("queued", "running") or row["cancelling"]:
                return False
            if row["state"] == "queued":
                db.execute(f"UPDATE jobs SET {WITH_LORAS} WHERE id=?", (json.dumps(refs), job))
            else:
                db.execute("UPDATE jobs SET switch=? WHERE id=?", (json.dumps(refs), job))
        return True

    # ---- workers: claim, append, finish

    def next_queued(self) -> Job | None:
        """Return the oldest queued job."""
        rows = self._db.read("SELECT * FROM jobs WHERE state='queued' ORDER BY seq LIMIT 1")
        return job_row(rows[0]) if rows else None

    def claim(self, worker: str, only: str | None = None) -> Job | None:
        """Take the oldest queued job in one statement, or only that one; no two workers ever get the same."""
        if not self._db.read("SELECT 1 FROM jobs WHERE state='queued' LIMIT 1"):
            return None  # an idle poll takes no write lock
        with self._db.write() as db:
            row = db.execute(
                "UPDATE jobs SET state='running', worker=?, attempt=attempt+1, started=?, lease=?, cancelling=0, switch=NULL"
                " WHERE seq=(SELECT min(seq) FROM jobs WHERE state='queued') AND id=coalesce(?, id) RETURNING *",
                (worker, self.now(), self.now() + self.lease_s, only),
            ).fetchone()
            if row is None:
                return None
            job = job_row(row)
            self._event(db, job.owner, job.id, job.attempt, "job", {"state": "running", "attempt": job.attempt})
            return job

    def beat(self, job: Job, worker: str) -> bool:
        """Renew the lease; False means stop: the job was cancelled, or is no longer this worker's."""
        with self._db.write() as db:
            return bool(self._renew(db, job, worker))

    def _renew(self, db: sqlite3.Connection, job: Job, worker: str) -> bool | None:
        """Renew the lease; None when the claim is lost, else whether the job is still wanted."""
        row = db.execute(
            "UPDATE jobs SET lease=? WHERE id=? AND worker=? AND attempt=? AND state='running' RETURNING cancelling",
            (self.now() + self.lease_s, job.id, worker, job.attempt),
        ).fetchone()
        return None if row is None else not row["cancelling"]

    def wanted(self, job: Job, worker: str) -> bool:
        """Like `beat` without writing: cheap enough to ask after every transformer block."""
        sql = "SELECT cancelling FROM jobs WHERE id=? AND worker=? AND attempt=? AND state='running'"
        rows = self._db.read(sql, job.id, worker, job.attempt)
        return bool(rows) and not rows[0]["cancelling"]

    def take_switch(self, job: Job, worker: str) -> list[LoraRef] | None:
        """Return the LoRA versions that a running job is to go on with, once; None: as before."""
        claim = "id=? AND worker=? AND attempt=? AND state='running' AND switch IS NOT NULL"
        rows = self._db.read(f"SELECT switch FROM jobs WHERE {claim}", job.id, worker, job.attempt)
        if not rows:
            return None  # asked before every step: that takes no write lock
        with self._db.write() as db:
            sql = f"UPDATE jobs SET switch=NULL WHERE {claim} AND switch=?"
            taken = db.execute(sql, (job.id, worker, job.attempt, rows[0]["switch"])).rowcount
        return [LoraRef(**ref) for ref in json.loads(rows[0]["switch"])] if taken else None

    def set_loras(self, job: Job, worker: str, loras: Sequence[dict[str, Any]]) -> None:
        """Take note of the LoRA versions with which a running job goes on."""
        with self._db.write() as db:
            db.execute(
                f"UPDATE jobs SET {WITH_LORAS} WHERE id=? AND worker=? AND attempt=?",
                (json.dumps(list(loras)), job.id, worker, job.attempt),
            )

    def append(self, job: Job, worker: str, kind: str, payload: dict[str, Any], preview: bytes | None = None) -> bool:
        """Add an event and renew the lease; returns what `beat` returns, and adds nothing when the claim is lost."""
        with self._db.write() as db:
            wanted = self._renew(db, job, worker)
            if wanted is None:
                return False
            if preview is not None:  # only the newest is ever looked at
                db.execute("UPDATE events SET preview=NULL WHERE job=? AND preview IS NOT NULL", (job.id,))
            self._event(db, job.owner, job.id, job.attempt, kind, payload, preview)
        return wanted

    def finish(
        self,
        job: Job,
        worker: str,
        state: JobState,
        *,
        error: dict[str, Any] | None = None,
        result: dict[str, Any] | None = None,
        files: tuple[tuple[str, str, str], ...] = (),
    ) -> bool:
        """End the job, and make its files (name, mime, download name) known, in one transaction."""
        with self._db.write() as db:
            owned = db.execute(
                "UPDATE jobs SET state=?, finished=?, error=?, result=?, worker=NULL, lease=NULL"
                " WHERE id=? AND worker=? AND attempt=? AND state='running'",
                (state, self.now(), dump(error), dump(result), job.id, worker, job.attempt),
            ).rowcount
            if not owned:
                return False
            for name, mime, download in files:
                self._file(db, name, job.owner, job.id, None, mime, download)
            db.execute("UPDATE events SET preview=NULL WHERE job=? AND preview IS NOT NULL", (job.id,))
            if result is not None:
                self._event(db, job.owner, job.id, job.attempt, "saved", result)
            self._event(db, job.owner, job.id, job.attempt, "job", {"state": state, "error": error})
        return True

    def release(self, worker: str | None = None, *, crashed: bool = True) -> int:
        """Give back the running jobs of a worker that died (None: of all): queue them again, the second crash ends them.

        `crashed=False` is for an orderly stop, which must not count as an attempt. Returns how many were given back.
        """
        with self._db.write() as db:
            rows = db.execute(
                "SELECT * FROM jobs WHERE state='running' AND worker=coalesce(?, worker)", (worker,)
            ).fetchall()
            for row in rows:
                self._release_one(db, row, crashed)
        return len(rows)

    def expired(self, worker: str) -> bool:
        """Tell whether the worker holds a job whose lease ran out: it hangs, or was stopped from outside."""
        sql = "SELECT 1 FROM jobs WHERE state='running' AND worker=? AND lease < ?"
        return bool(self._db.read(sql, worker, self.now()))

    def _release_one(self, db: sqlite3.Connection, row: sqlite3.Row, crashed: bool) -> None:
        error = None
        if row["cancelling"]:
            state = JobState.CANCELLED
        elif crashed and row["attempt"] >= MAX_ATTEMPTS:
            state = JobState.INTERRUPTED
            message = "The engine stopped twice on this picture; nothing else is affected, press Retry to try again."
            error = {"code": "twice", "message": message, "args": {}}
        else:
            state = JobState.QUEUED
        if row["switch"] and not state.ended:  # asked for, and not yet taken: it begins with these
            db.execute(f"UPDATE jobs SET {WITH_LORAS} WHERE seq=?", (row["switch"], row["seq"]))
        finished = self.now() if state.ended else None
        attempt = row["attempt"] if crashed else max(0, row["attempt"] - 1)
        db.execute(
            "UPDATE jobs SET state=?, worker=NULL, lease=NULL, error=?, finished=?, attempt=? WHERE seq=?",
            (state, dump(error), finished, attempt, row["seq"]),
        )
        db.execute("UPDATE events SET preview=NULL WHERE job=? AND preview IS NOT NULL", (row["id"],))
        self._event(db, row["owner"], row["id"], row["attempt"], "job", {"state": state, "error": error})

    # ---- events

    def broadcast(self, kind: str, payload: dict[str, Any]) -> None:
        """Tell everybody, without a job: the engine's state, a new weights file."""
        with self._db.write() as db:
            self._event(db, None, None, 0, kind, payload)

    def _event(
        self,
        db: sqlite3.Connection,
        owner: str | None,
        job: str | None,
        attempt: int,
        kind: str,
        payload: dict[str, Any],
        preview: bytes | None = None,
    ) -> None:
        db.execute(
            "INSERT INTO events (owner, job, attempt, kind, payload, preview, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (owner, job, attempt, kind, json.dumps(payload), preview, self.now()),
        )

    def events(self, after: int, owner: str | None = None, job: str | None = None, limit: int = 500) -> list[EventRow]:
        """Return events with an id above `after`: all, or those of one owner (and everybody's), or of one job."""
        rows = self._db.read(
            "SELECT * FROM events WHERE id > ? AND (? IS NULL OR owner IS NULL OR owner=?) AND (? IS NULL OR job=?)"
            " ORDER BY id LIMIT ?",
            *(after, owner, owner, job, job, limit),
        )
        return [event_row(row) for row in rows]

    def last_event(self, kind: str | None = None) -> EventRow | None:
        where, values = ("WHERE kind=?", (kind,)) if kind else ("", ())
        rows = self._db.read(f"SELECT * FROM events {where} ORDER BY id DESC LIMIT 1", *values)
        return event_row(rows[0]) if rows else None

    def drop_old_events(self, before: float) -> int:
        """Forget the steps and memory readings of jobs that ended before; how a job ended is kept."""
        with self._db.write() as db:
            return db.execute(
                "DELETE FROM events WHERE kind IN ('step', 'memory', 'stage') AND job IN"
                " (SELECT id FROM jobs WHERE finished < ?)",
                (before,),
            ).rowcount

    # ---- uploads and files

    def add_upload(self, upload: UploadRow) -> None:
        with self._db.write() as db:
            db.execute(
                "INSERT INTO uploads (id, owner, name, file, mime, cards, created) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *(upload.id, upload.owner, upload.name, upload.file, upload.mime),
                    *(json.dumps(upload.cards), self.now()),
                ),
            )

    def find_upload(self, upload: str, owner: str | None = None) -> UploadRow | None:
        sql = "SELECT id, owner, name, file, mime, cards FROM uploads WHERE id=? AND owner=coalesce(?, owner)"
        rows = self._db.read(sql, upload, owner)
        return UploadRow(**{**dict(rows[0]), "cards": json.loads(rows[0]["cards"])}) if rows else None

    def set_card(self, upload: str, policy: str, card: dict[str, Any]) -> None:
        with self._db.write() as db:
            cards = json.loads(db.execute("SELECT cards FROM uploads WHERE id=?", (upload,)).fetchone()[0])
            db.execute("UPDATE uploads SET cards=? WHERE id=?", (json.dumps({**cards, policy: card}), upload))

    def add_file(self, name: str, owner: str, upload: str, mime: str, download: str) -> None:
        with self._db.write() as db:
            self._file(db, name, owner, None, upload, mime, download)

    def _file(
        self,
        db: sqlite3.Connection,
        name: str,
        owner: str,
        job: str | None,
        upload: str | None,
        mime: str,
        download: str,
    ) -> None:
        db.execute(
            "INSERT INTO files (name, owner, job, upload, mime, download, created) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (name, owner, job, upload, mime, download, self.now()),
        )

    def find_file(self, name: str, owner: str) -> FileRow | None:
        rows = self._db.read("SELECT name, owner, mime, download FROM files WHERE name=? AND owner=?", name, owner)
        return FileRow(**dict(rows[0])) if rows else None

    def known_files(self) -> set[str]:
        """Return the names of all files that belong to an upload or a result."""
        return {row[0] for row in self._db.read("SELECT name FROM files UNION SELECT file FROM uploads")}

    def drop_old_uploads(self, before: float) -> list[str]:
        """Forget uploads older than `before` that no waiting job needs; returns the files that may be deleted."""
        with self._db.write() as db:
            old = [
                row[0]
                for row in db.execute(
                    "SELECT id FROM uploads WHERE created < ? AND id NOT IN"
                    " (SELECT upload FROM jobs WHERE state IN ('queued', 'running'))",
                    (before,),
                )
            ]
            names: list[str] = []
            for upload in old:
                names += [r[0] for r in db.execute("DELETE FROM files WHERE upload=? RETURNING name", (upload,))]
                names += [r[0] for r in db.execute("DELETE FROM uploads WHERE id=? RETURNING file", (upload,))]
        return sorted(set(names))
