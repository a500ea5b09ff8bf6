"""Rows of the job database as values."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from realchar.schema import EditRequest, Job, JobState


@dataclass(frozen=True)
class EventRow:
    """One stored event. `owner` None means that it is for everybody; `preview` is a JPEG."""

    id: int
    owner: str | None
    job: str | None
    attempt: int
    kind: str
    payload: dict[str, Any]
    preview: bytes | None
    at: float


@dataclass(frozen=True)
class UploadRow:
    id: str
    owner: str
    name: str
    file: str
    mime: str
    cards: dict[str, Any]


@dataclass(frozen=True)
class FileRow:
    name: str
    owner: str
    mime: str
    download: str


def dump(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def event_row(row: sqlite3.Row) -> EventRow:
    return EventRow(**{**dict(row), "payload": json.loads(row["payload"])})


def job_row(row: sqlite3.Row) -> Job:
    return Job(
        id=row["id"],
        owner=row["owner"],
        state=JobState(row["state"]),
        request=EditRequest.from_json(json.loads(row["request"])),
        upload=row["upload"],
        source_name=row["source_name"],
        created=row["created"],
        started=row["started"],
        finished=row["finished"],
        attempt=row["attempt"],
        cancelling=bool(row["cancelling"]),
        error=json.loads(row["error"]) if row["error"] else None,
        result=json.loads(row["result"]) if row["result"] else None,
    )
