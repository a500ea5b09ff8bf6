"""Pictures come in as a raw body, so that nothing but this route ever touches their bytes."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool

from realchar.api.answers import whole
from realchar.api.common import Owner
from realchar.errors import InvalidInput, storage_error
from realchar.schema import SizePolicy

if TYPE_CHECKING:
    from realchar.service import Service

MAX_NAME = 200  # characters kept of a file name; it is for display and download names only
LongEdge = Annotated[int | None, Query(ge=32, le=4096)]
Vram = Annotated[float | None, Query(allow_inf_nan=False)]


class TooBig(InvalidInput):
    http_status = 413


def add_routes(router: APIRouter, service: Service) -> None:
    limit = service.settings.upload_mb * 10**6
    incoming = service.settings.data / "incoming"
    _clear(incoming)

    @router.put("/api/uploads", status_code=201)
    async def upload(
        request: Request,
        owner: Owner,
        name: str = "picture",
        size: SizePolicy = "safe",
        long_edge: LongEdge = None,
        offload: str | None = None,
        vram: Vram = None,
    ) -> dict[str, Any]:
        """Take a picture (the raw body), prepare it for the model, and return its card."""
        service.settings_for(offload, vram)  # refused before the picture is sent
        announced = whole(request.headers.get("content-length")) or 0
        if announced > limit:
            raise _too_big(announced, limit)
        try:
            file = await _receive(request, incoming, limit)
        except OSError as error:
            raise storage_error(error, "The picture") from error
        try:
            card = await run_in_threadpool(service.add_upload, owner, file, _display_name(name), size, long_edge)
            return await run_in_threadpool(service.fitted, card, offload, vram)
        finally:
            file.unlink(missing_ok=True)  # the service has moved it away unless it failed early

    @router.get("/api/uploads/{upload_id}")
    def card(
        upload_id: str,
        owner: Owner,
        size: SizePolicy = "safe",
        long_edge: LongEdge = None,
        offload: str | None = None,
        vram: Vram = None,
    ) -> dict[str, Any]:
        """Return the card of an upload, prepared for this size; whether it fits, with these choices."""
        return service.fitted(service.card(owner, upload_id, size, long_edge), offload, vram)


def _clear(folder: Path) -> None:
    """Delete what an app that was killed while it received left behind; only one app uses a data folder at a time."""
    for file in folder.glob("tmp*"):
        with contextlib.suppress(OSError):  # a file that another program holds is only in the way
            file.unlink()


async def _receive(request: Request, folder: Path, limit: int) -> Path:
    """Write the body to a file in `folder`; raises InvalidInput once it passes `limit` bytes or when it is empty."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    received = 0
    file = tempfile.NamedTemporaryFile(dir=folder, delete=False)  # noqa: SIM115 - closed below, on Windows before unlink
    path = Path(file.name)
    try:
        with file:
            async for chunk in request.stream():
                received += len(chunk)
                if received > limit:
                    raise _too_big(received, limit)
                file.write(chunk)
        if not received:
            raise InvalidInput("empty", "The file is empty; choose a picture.")
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _too_big(size: int, limit: int) -> TooBig:
    mb, most = size / 10**6, limit / 10**6
    message = f"{mb:.1f} MB is over the limit of {most:g} MB; save the picture smaller, for example as JPG."
    return TooBig("too_big", message, mb=round(mb, 1), max=most)


def _display_name(name: str) -> str:
    """Return the last part of a file name without control characters."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(char for char in last if char.isprintable())[:MAX_NAME].strip() or "picture"
