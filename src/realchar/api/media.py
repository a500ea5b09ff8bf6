"""Stored pictures by their unguessable names, byte for byte, and small thumbnails for the strip of jobs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from PIL import Image

from realchar.api.common import Owner
from realchar.errors import NotFound

if TYPE_CHECKING:
    from realchar.schema import Job
    from realchar.service import Service

THUMBNAIL = 192  # pixels, long edge
FOREVER = {"Cache-Control": "private, max-age=31536000, immutable"}  # a media name is never used twice


def add_routes(router: APIRouter, service: Service) -> None:
    @router.get("/api/media/{name}", response_class=FileResponse)
    def media(name: str, owner: Owner, dl: bool = False) -> Response:
        """Return a stored picture; `dl=1` makes the browser save it under its own name."""
        found = service.media(owner, name)
        download = found.download if dl else None
        return FileResponse(found.path, media_type=found.mime, filename=download, headers=FOREVER)

    @router.get("/api/jobs/{job_id}/thumb", response_class=Response)
    def thumb(job_id: str, owner: Owner) -> Response:
        """Return a small JPEG of the result, or of the upload while there is none."""
        job = service.get(owner, job_id)
        picture = thumbnail(service.media(owner, _thumb_source(service, owner, job)).path)
        # The picture behind this address changes once, when the job ends.
        cache = FOREVER if job.result else {"Cache-Control": "no-store"}
        return Response(picture, media_type="image/jpeg", headers=cache)


def _thumb_source(service: Service, owner: str, job: Job) -> str:
    if job.result:
        return str(job.result["files"]["clean"])
    return str(service.card(owner, job.upload, job.request.size, job.request.long_edge)["exact"])


def thumbnail(path: Path) -> bytes:
    """Return a JPEG with a long edge of `THUMBNAIL` pixels."""
    try:
        with Image.open(path) as image:
            image.draft("RGB", (THUMBNAIL, THUMBNAIL))
            small = image.convert("RGB")
    except OSError as error:
        raise NotFound("file_gone", "This picture can't be read any more; make it again.") from error
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=82)
    return buffer.getvalue()
