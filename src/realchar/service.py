"""The façade that UI, command line and API talk to: uploads, jobs, events, files. Starts without torch.

Every call names the owner; what belongs to another owner does not exist for it.
"""

from __future__ import annotations

import io
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from realchar.catalog import BaseInfo, load_base
from realchar.engine.memory import least_bytes
from realchar.errors import InvalidInput, JobError, NotFound, storage_error
from realchar.images import PrepareOptions, prepare
from realchar.jobs.rows import EventRow, UploadRow
from realchar.jobs.store import JobStore
from realchar.machine import GB, has_card, read_memory
from realchar.requests import (
    check_choices,
    check_text,
    check_values,
    checked,
    checked_loras,
    prepare_options,
    with_choices,
)
from realchar.results import read_request, save
from realchar.schema import EditRequest, Job, LoraRef, SizePolicy
from realchar.settings import Settings
from realchar.versions import get_weights, list_versions, look_at, picture_beside, target_of_base

VERSION_EDGE = 256  # pixels of the picture that lies beside a version


@dataclass(frozen=True)
class Media:
    """A file that its owner may fetch: `path` on disk, `mime`, and the name to save it under."""

    path: Path
    mime: str
    download: str


def make_folder(folder: Path) -> None:
    """Make a private folder; raises StorageError where that can't be."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise storage_error(error, f"The folder {str(folder)!r}") from error


def _usable_request(file: Path) -> tuple[EditRequest | None, list[dict[str, Any]]]:
    """Return the settings that a picture carries, or None and the note that they can't be used."""
    request = read_request(file)
    if request is None:
        return None, []
    try:
        check_values(request)
    except InvalidInput:
        return None, [{"code": "params_bad", "text": "The settings in this picture can't be used and were left aside"}]
    return request, []


class Service:
    """One per process; every method is quick and thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        make_folder(settings.files)
        self.store = JobStore(settings.database, lease_s=settings.lease_s)
        self._base = lru_cache(maxsize=1)(load_base)

    def close(self) -> None:
        self.store.close()

    def base(self) -> BaseInfo:
        return self._base(self.settings.base)

    # ---- LoRA versions

    def versions(self) -> list[dict[str, Any]]:
        """List the LoRA versions, newest first; `default` marks the one that is chosen where nobody chooses."""
        return [version.to_json() for version in list_versions(self.settings.weights, target_of_base(self.base()))]

    def look_at_version(self, name: str) -> dict[str, Any]:
        """Return what a version is after looking at all of its numbers, and what it adds to each module."""
        info = get_weights(self.settings.weights, name)
        version = look_at(info, self.settings.weights, target_of_base(self.base()))
        return {**version.to_json(), **version.report.to_json()}

    def version_picture(self, name: str) -> bytes:
        """Return the picture that lies beside a version as a small WebP. Raises NotFound."""
        file = picture_beside(get_weights(self.settings.weights, name))
        if file is None:
            raise NotFound("picture_none", f"No picture lies beside LoRA version {name!r}.", name=name)
        buffer = io.BytesIO()
        prepare(file, PrepareOptions(long_edge=VERSION_EDGE)).picture.save(buffer, "WEBP", quality=85)
        return buffer.getvalue()

    def switch(self, owner: str, job: str, loras: Sequence[LoraRef]) -> Job:
        """Let a waiting job have other LoRA versions, or a running one from its next step on."""
        self.get(owner, job)
        found = checked_loras(loras, self.settings.weights, self.base())
        if not self.store.switch(job, owner, found):
            raise JobError("job_ended", "This job has ended, so its version can't be switched; convert again.", job=job)
        return self.get(owner, job)

    # ---- uploads

    def add_upload(
        self, owner: str, source: Path, name: str, size: SizePolicy = "safe", long_edge: int | None = None
    ) -> dict[str, Any]:
        """Take `source` over, prepare it, and return its card; on refusal the file is deleted."""
        check_text("The file name", name)
        upload = secrets.token_urlsafe(16)
        file = self.settings.files / f"{upload}.upload"
        try:
            shutil.move(source, file)
            card = self._prepare(owner, upload, file, size, long_edge)
            params, params_notes = _usable_request(file)
        except BaseException as error:
            file.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise storage_error(error, f"The upload {name!r}") from error
            raise
        mime = _BROWSER_FORMATS.get(card["format"], "")
        card |= {
            "id": upload,
            "name": name,
            "bytes": file.stat().st_size,
            "original": file.name if mime else card["exact"],
            "params": params.to_json() if params else None,
            "notes": card["notes"] + params_notes,
        }
        self.store.add_upload(UploadRow(upload, owner, name, file.name, mime, {_policy(size, long_edge): card}))
        if mime:
            self.store.add_file(file.name, owner, upload, mime, name)
        return self.fitted(card)

    def card(self, owner: str, upload: str, size: SizePolicy, long_edge: int | None = None) -> dict[str, Any]:
        """Return the card of an upload for another size; prepared once per size."""
        row = self._upload(owner, upload)
        policy = _policy(size, long_edge)
        if policy not in row.cards:
            known: dict[str, Any] = next(iter(row.cards.values()))
            card = known | self._prepare(owner, upload, self.settings.files / row.file, size, long_edge)
            if not row.mime:
                card["original"] = card["exact"]
            self.store.set_card(upload, policy, card)
            return self.fitted(card)
        return self.fitted(row.cards[policy])

    def fitted(self, card: dict[str, Any], offload: str | None = None, vram: float | None = None) -> dict[str, Any]:
        """Return a card with what its picture needs now, and of what: with these choices, else as the app is set.

        Raises InvalidInput for a choice that is not possible.
        """
        settings = self.settings_for(offload, vram)
        base, memory = self.base(), read_memory(settings.device)
        on_gpu = memory.kind == "gpu"
        size, precision = card["padded"], settings.precision
        need = least_bytes(base, settings.offload, *size, on_gpu=on_gpu, precision=precision) / GB
        total = min(memory.total_gb, settings.vram or memory.total_gb) if on_gpu else memory.total_gb
        return card | {
            "fits": max(card["prepared"]) <= base.long_edge and need <= total,
            "need_gb": round(need, 1),
            "memory": memory.kind,
            "total_gb": round(total, 1),
        }

    def settings_for(self, offload: str | None, vram: float | None) -> Settings:
        """Return the settings with these choices in effect. Raises InvalidInput for one that is not possible."""
        request = EditRequest("", offload=offload, vram=vram)
        check_choices(request, self.settings, on_gpu=has_card(self.settings.device))
        return with_choices(self.settings, request)

    def _prepare(self, owner: str, upload: str, file: Path, size: SizePolicy, long_edge: int | None) -> dict[str, Any]:
        base = self.base()
        options = prepare_options(base, size, long_edge, self.settings.max_megapixels)
        prepared = prepare(file, options)
        exact = f"{secrets.token_urlsafe(16)}.png"
        save(prepared.picture, self.settings.files / exact)
        self.store.add_file(exact, owner, upload, "image/png", "prepared.png")
        report = prepared.report
        return {
            "source": report["source"]["size"],
            "format": report["source"]["format"],
            "mode": report["source"]["mode"],
            "prepared": report["prepared"]["size"],
            "padded": report["padded"],
            "notes": report["notes"],
            "exact": exact,
        }

    def _upload(self, owner: str, upload: str) -> UploadRow:
        row = self.store.find_upload(upload, owner)
        if row is None or not (self.settings.files / row.file).exists():
            raise NotFound("upload_gone", "The uploaded picture is no longer here; choose it again.", upload=upload)
        return row

    # ---- jobs

    def submit(self, owner: str, upload: str, request: EditRequest, key: str | None = None) -> Job:
        """Queue a conversion; the same `key` returns the same job."""
        row = self._upload(owner, upload)
        check_text("key", key or "")
        check_choices(request, self.settings, on_gpu=has_card(self.settings.device))
        request = checked(request, self.settings.weights, self.base())
        waiting = self.store.num_waiting(owner)
        if waiting >= self.settings.max_queued:
            message = f"You already have {waiting} jobs waiting; wait for one or cancel one."
            raise JobError("queue_full", message, n=waiting)
        return self.store.submit(owner, upload, row.name, request, key=key)

    def get(self, owner: str, job: str) -> Job:
        found = self.store.find(job, owner)
        if found is None:
            raise NotFound("job_unknown", f"There is no job {job!r} of yours; look at the list of your jobs.", job=job)
        return found

    def jobs(self, owner: str, limit: int = 50) -> list[Job]:
        return self.store.list_jobs(owner, limit)

    def cancel(self, owner: str, job: str) -> Job:
        self.get(owner, job)
        self.store.cancel(job, owner)
        return self.get(owner, job)

    def retry(self, owner: str, job: str) -> Job:
        """Queue a new job with the same picture and settings."""
        old = self.get(owner, job)
        return self.submit(owner, old.upload, old.request)

    def position(self, job: Job) -> int:
        """Return the place in line, 1 = next; 0 when it isn't waiting."""
        return self.store.position(job.id)

    def events(self, owner: str, after: int, limit: int = 500) -> list[EventRow]:
        return self.store.events(after, owner=owner, limit=limit)

    def last_event(self) -> int:
        row = self.store.last_event()
        return row.id if row else 0

    def media(self, owner: str, name: str) -> Media:
        row = self.store.find_file(name, owner)
        if row is None or not (self.settings.files / row.name).is_file():
            raise NotFound("file_gone", "This file is not here any more; make the picture again.", name=name)
        return Media(self.settings.files / row.name, row.mime, row.download)

    # ---- the machine

    def engine(self) -> dict[str, Any]:
        row = self.store.last_event("engine")
        return row.payload if row else {"state": "starting"}

    def stats(self) -> dict[str, Any]:
        memory = read_memory(self.settings.device)
        step = self.store.last_event("step")
        return {
            "queue_length": self.store.num_waiting(),
            "memory": {"memory": memory.kind, "used_gb": memory.used_gb, "total_gb": memory.total_gb},
            "vram_used_gb": memory.used_gb if memory.kind == "gpu" else None,
            "s_per_step": step.payload["elapsed_s"] / step.payload["i"] if step else None,
        }


# Formats that every browser shows as they are; of the others the prepared picture is shown instead.
_BROWSER_FORMATS = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "MPO": "image/jpeg",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "AVIF": "image/avif",
}


def _policy(size: SizePolicy, long_edge: int | None) -> str:
    return f"{size}:{long_edge or ''}"


__all__ = ["EventRow", "Media", "Service"]
