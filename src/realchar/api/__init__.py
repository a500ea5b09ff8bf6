"""The HTTP routes beside the page: uploads, media, jobs, the live line. Scripts use the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from realchar.api import events, jobs, media, uploads
from realchar.api.common import SentenceRoute

if TYPE_CHECKING:
    from realchar.service import Service


def create_router(service: Service) -> APIRouter:
    """Return the routes of `/api` and `/healthz`.

    The owner of a request is `request.state.owner`, set by the ASGI layer around the app and never by the client.
    """
    router = APIRouter(route_class=SentenceRoute)
    hub = events.Hub(service)
    for part in (uploads, media, jobs):
        part.add_routes(router, service)
    events.add_routes(router, hub)

    @router.get("/healthz")
    def healthz() -> dict[str, bool]:
        return {"ok": True, "ready": True}

    @router.get("/api/weights")
    def weights() -> list[dict[str, Any]]:
        """List the LoRA versions, newest first; `default` marks the one that is taken where nobody chooses."""
        newest = service.newest_weights()
        listing = events.weights_json(service)
        return [{**info, "default": newest is not None and info["name"] == newest.name} for info in listing]

    @router.get("/api/stats")
    def stats() -> dict[str, Any]:
        """Tell queue length, memory in use and seconds per step."""
        return {**service.stats(), "engine": service.engine()}

    return router
