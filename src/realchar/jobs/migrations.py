"""Named migrations of the job database, each run once and recorded, so that two branches may both add one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable


def m001_jobs(db: sqlite3.Connection) -> None:
    db.execute(
        """CREATE TABLE jobs (
            seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, key TEXT,
            state TEXT NOT NULL, request TEXT NOT NULL, upload TEXT NOT NULL, source_name TEXT NOT NULL,
            created REAL NOT NULL, started REAL, finished REAL, attempt INTEGER NOT NULL DEFAULT 0,
            worker TEXT, lease REAL, cancelling INTEGER NOT NULL DEFAULT 0, error TEXT, result TEXT,
            UNIQUE (owner, key))"""
    )
    db.execute("CREATE INDEX jobs_by_state ON jobs (state, seq)")
    db.execute("CREATE INDEX jobs_by_owner ON jobs (owner, seq)")


def m002_events(db: sqlite3.Connection) -> None:
    db.execute(
        """CREATE TABLE events (
            id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT, job TEXT, attempt INTEGER NOT NULL, kind TEXT NOT NULL,
            payload TEXT NOT NULL, preview BLOB, at REAL NOT NULL)"""
    )
    db.execute("CREATE INDEX events_by_owner ON events (owner, id)")
    db.execute("CREATE INDEX events_by_job ON events (job, id)")
    db.execute("CREATE INDEX events_by_kind ON events (kind, id)")


def m003_files(db: sqlite3.Connection) -> None:
    db.execute(
        """CREATE TABLE uploads (
            id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, file TEXT NOT NULL, mime TEXT NOT NULL,
            cards TEXT NOT NULL DEFAULT '{}', created REAL NOT NULL)"""
    )
    db.execute(
        """CREATE TABLE files (
            name TEXT PRIMARY KEY, owner TEXT NOT NULL, job TEXT, upload TEXT, mime TEXT NOT NULL, download TEXT NOT NULL,
            created REAL NOT NULL)"""
    )


def m004_switch(db: sqlite3.Connection) -> None:
    """Let a running job be told of other LoRA versions: the JSON of a list, until its worker has taken it."""
    db.execute("ALTER TABLE jobs ADD COLUMN switch TEXT")


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (m001_jobs, m002_events, m003_files, m004_switch)


def migrate(db: sqlite3.Connection) -> None:
    """Bring the database up to date; one transaction for all that is missing, safe against a second process."""
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied REAL NOT NULL)")
        done = {row[0] for row in db.execute("SELECT name FROM migrations")}
        for step in MIGRATIONS:
            if step.__name__ not in done:
                step(db)
                db.execute("INSERT INTO migrations VALUES (?, ?)", (step.__name__, time.time()))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
