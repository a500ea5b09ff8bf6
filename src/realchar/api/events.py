"""The live line: one stream of server-sent events per watcher, all fed by a single reader of the events table.

The first message is `hello` with the state of everything; after it come the rows as they are written. A watcher that
reconnects gets a new `hello` and the rows it missed; a new one gets, for each job that runs, what a page needs to draw
it. Either way only the newest preview is sent again.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

import realchar
from realchar.api.answers import dump, whole
from realchar.api.common import Owner
from realchar.api.jobs import job_json
from realchar.errors import RealCharError

if TYPE_CHECKING:
    from realchar.service import EventRow, Service

log = logging.getLogger(__name__)
POLL_S = 0.1  # between two looks at the events table
SLOW_S = 5.0  # between two looks at weights, memory and queue positions
BEAT_S = 10.0
STREAM_S = 600.0  # a stream ends after this time; the browser opens it again by itself
BACKLOG = 64  # messages that wait for a slow watcher before old previews are dropped
REPLAY = 1500  # rows that are looked through for jobs that still run
PAGE = 500  # rows read at once
DROPPABLE = ("step", "memory", "stats")
LATEST = ("step", "memory", "stage")  # of these a replay carries only the newest


class Watcher:
    """One open stream: messages wait here, bounded by dropping those that the next one of their kind replaces."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._messages: deque[tuple[int, str, str]] = deque()  # (row id or 0, kind, text)
        self._ready = asyncio.Event()

    def put(self, row: int, kind: str, text: str) -> None:
        if len(self._messages) >= BACKLOG:
            old = next((m for m in self._messages if m[1] in DROPPABLE), None)
            if old is not None:
                self._messages.remove(old)
        self._messages.append((row, kind, text))
        self._ready.set()

    async def next(self, timeout_s: float) -> tuple[int, str, str] | None:
        """Return the oldest message, or None after `timeout_s`."""
        if not self._messages:
            self._ready.clear()
            try:
                await asyncio.wait_for(self._ready.wait(), timeout_s)
            except TimeoutError:
                return None
        return self._messages.popleft()


class Hub:
    """Reads the table for all watchers; runs only while somebody watches."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._watchers: list[Watcher] = []
        self._task: asyncio.Task[None] | None = None
        self._lock: asyncio.Lock | None = None
        self._cursor = 0

    async def stream(self, owner: str, after: int = 0) -> AsyncIterator[str]:
        """Yield messages for one watcher; `after` is the last row it has seen, 0 for a page that starts."""
        watcher = Watcher(owner)
        await self._add(watcher)
        try:
            yield "retry: 1000\n\n"
            # Rows up to `last` are in the snapshot; the watcher was added before, so that later ones can't be missed.
            last, hello, replay = await run_in_threadpool(self._snapshot, owner, after)
            yield message(last, "hello", hello)
            for row in replay:
                yield message(row.id, row.kind, row_json(row))
            end = time.monotonic() + STREAM_S
            while time.monotonic() < end:
                found = await watcher.next(BEAT_S)
                if found is None:
                    yield message(0, "beat", {})
                elif not 0 < found[0] <= last:
                    yield found[2]
        except RealCharError as error:  # the answer has begun; the browser comes again in a second
            log.warning("%s", error.message)
        finally:
            self._watchers.remove(watcher)

    def _snapshot(self, owner: str, after: int) -> tuple[int, dict[str, Any], list[EventRow]]:
        service = self.service
        last = service.last_event()
        after = min(after, last)  # beyond the last row is: from now on
        jobs = [job_json(service, job) for job in service.jobs(owner)]
        hello = {
            "version": realchar.__version__,
            "engine": service.engine(),
            "stats": service.stats(),
            "jobs": jobs,
        }
        running = {job["id"]: job["attempt"] for job in jobs if job["state"] == "running"}
        if not (after or running):
            return last, hello, []
        rows = _read(service, owner, max(after, last - REPLAY, 0), last)
        if not after:
            rows = [row for row in rows if running.get(row.job or "") == row.attempt and row.kind != "job"]
        newest = {(row.job, row.kind): row.id for row in rows}
        return last, hello, [row for row in rows if row.kind not in LATEST or newest[row.job, row.kind] == row.id]

    async def _add(self, watcher: Watcher) -> None:
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._task is None or self._task.done():
                self._cursor = await run_in_threadpool(self.service.last_event)
                self._task = asyncio.create_task(self._tail(), name="live line")
            self._watchers.append(watcher)

    async def _tail(self) -> None:
        slow_at, weights = 0.0, ""
        empty_since = None
        while True:
            if self._watchers:
                empty_since = None
            else:
                empty_since = empty_since or time.monotonic()
                if time.monotonic() - empty_since > SLOW_S:
                    return
            try:
                if self._watchers:
                    await self._pass_on()
                if self._watchers and time.monotonic() - slow_at > SLOW_S:
                    slow_at = time.monotonic()
                    weights = await self._pass_slow(weights)
            except RealCharError as error:  # a full disk, a locked database: the watchers wait until that has passed
                log.warning("%s", error.message)
                await asyncio.sleep(BEAT_S / 10)
            await asyncio.sleep(POLL_S)

    async def _pass_on(self) -> None:
        last = await run_in_threadpool(self.service.last_event)
        if last <= self._cursor:
            return
        for owner in {watcher.owner for watcher in self._watchers}:
            rows = await run_in_threadpool(_read, self.service, owner, self._cursor, last)
            watchers = [watcher for watcher in self._watchers if watcher.owner == owner]
            for row in rows:
                text = message(row.id, row.kind, row_json(row))
                for watcher in watchers:
                    watcher.put(row.id, row.kind, text)
        self._cursor = last

    async def _pass_slow(self, known: str) -> str:
        """Send memory and queue positions, and the list of weights when it has changed; return that list."""
        stats = await run_in_threadpool(self.service.stats)
        for owner in {watcher.owner for watcher in self._watchers}:
            positions = await run_in_threadpool(_positions, self.service, owner)
            text = message(0, "stats", {**stats, "positions": positions})
            for watcher in self._watchers:
                if watcher.owner == owner:
                    watcher.put(0, "stats", text)
        weights = await run_in_threadpool(self.service.versions)
        listing = dump(weights)
        if known and listing != known:
            for watcher in self._watchers:
                watcher.put(0, "weights", message(0, "weights", {"weights": weights}))
        return listing


def _positions(service: Service, owner: str) -> dict[str, int]:
    return {job.id: service.position(job) for job in service.jobs(owner) if job.state == "queued"}


def _read(service: Service, owner: str, after: int, last: int) -> list[EventRow]:
    """Return the owner's rows with `after < id <= last`."""
    rows: list[EventRow] = []
    while True:
        page = service.events(owner, after, PAGE)
        rows += [row for row in page if row.id <= last]
        if len(page) < PAGE or page[-1].id >= last:
            return rows
        after = page[-1].id


def row_json(row: EventRow) -> dict[str, Any]:
    data = {**row.payload, "job": row.job, "attempt": row.attempt}
    if row.preview:
        data["preview"] = "data:image/jpeg;base64," + base64.b64encode(row.preview).decode("ascii")
    return data


def message(row: int, kind: str, data: dict[str, Any]) -> str:
    """Return one server-sent event; only rows of the table carry an id, so that a reconnect continues after one."""
    head = f"id: {row}\n" if row else ""
    return f"{head}event: {kind}\ndata: {dump(data)}\n\n"


def add_routes(router: APIRouter, hub: Hub) -> None:
    @router.get("/api/events", response_class=StreamingResponse)
    async def events(
        owner: Owner,
        after: Annotated[str | None, Query(description="the last row that you have seen")] = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> StreamingResponse:
        """Stream what happens to your jobs (server-sent events), beginning with `hello`."""
        seen = next((row for row in map(whole, (last_event_id, after)) if row is not None), 0)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(hub.stream(owner, seen), media_type="text/event-stream", headers=headers)
