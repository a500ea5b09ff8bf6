"""Deleting what was kept long enough, and what a crash left behind."""

from __future__ import annotations

import time

from realchar.jobs.store import JobStore
from realchar.settings import Settings

STEPS_KEPT_S = 24 * 3600.0
ORPHAN_S = 3600.0  # a file that nothing names may be on its way into the database for as long as this


def clean(store: JobStore, settings: Settings, now: float | None = None) -> list[str]:
    """Delete old uploads, the steps of old jobs, and files that no row names; returns the names of deleted files."""
    now = time.time() if now is None else now
    store.drop_old_events(now - STEPS_KEPT_S)
    names = store.drop_old_uploads(now - settings.uploads_hours * 3600)
    known = store.known_files()
    for path in settings.files.iterdir():
        if path.name not in known and path.is_file() and path.stat().st_mtime < now - ORPHAN_S:
            names.append(path.name)
    for name in names:
        (settings.files / name).unlink(missing_ok=True)
    return sorted(set(names))
