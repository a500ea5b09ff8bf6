"""LoRA versions: the listing, one looked at closely, and the picture beside it. Names are only ever looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Response

if TYPE_CHECKING:
    from realchar.service import Service


def add_routes(router: APIRouter, service: Service) -> None:
    @router.get("/api/weights")
    def weights() -> list[dict[str, Any]]:
        """List the LoRA versions, newest first; `default` marks the one that is taken where nobody chooses."""
        return service.versions()

    @router.get("/api/weights/check")
    def check(name: str) -> dict[str, Any]:
        """Look at all numbers of a version: whether it fits, and what it adds to each module."""
        return service.look_at_version(name)

    @router.get("/api/weights/picture", response_class=Response)
    def picture(name: str) -> Response:
        """Return the picture that lies beside a version, small."""
        return Response(service.version_picture(name), media_type="image/webp", headers={"Cache-Control": "no-cache"})
