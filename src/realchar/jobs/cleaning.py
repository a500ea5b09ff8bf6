"""Deleting what was kept long enough."""

from __future__ import annotations

import time

from realchar.jobs.store import JobStore
from realchar.settings import Settings


def drop_old_uploads(store: JobStore, settings: Settings) -> int:
    """Delete uploads older than the set time that no waiting job needs; returns the number of files."""
    names = store.drop_old_uploads(time.time() - settings.uploads_hours * 3600)
    for name in names:
        (settings.files / name).unlink(missing_ok=True)
    return len(names)
