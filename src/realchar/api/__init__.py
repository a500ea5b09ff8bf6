"""The HTTP routes beside the page: uploads, media, jobs, the live line. Scripts use the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI

import realchar
from realchar.api import events, jobs, media, uploads, weights
from realchar.api.answers import Answer, add_handlers
from realchar.api.common import SentenceRoute

if TYPE_CHECKING:
    from realchar.service import Service

PATHS = ("/api/", "/healthz", "/openapi.json")  # what begins so is answered here, the rest is the page's


def create_app(service: Service) -> FastAPI:
    """Return an app of its own, so that every address below `/api` is answered in one form, also an unknown one."""
    app = FastAPI(title="RealCharacters", version=realchar.__version__, docs_url=None, redoc_url=None)
    add_handlers(app)
    app.include_router(create_router(service))
    return app


def create_router(service: Service) -> APIRouter:
    """Return the routes of `/api` and `/healthz`.

    The owner of a request is `request.state.owner`, set by the ASGI layer around the app and never by the client.
    """
    router = APIRouter(route_class=SentenceRoute, default_response_class=Answer)
    hub = events.Hub(service)
    for part in (uploads, media, jobs, weights):
        part.add_routes(router, service)
    events.add_routes(router, hub)

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz")
    def healthz() -> dict[str, bool]:
        """Tell that the app answers; while it starts, this is 503 with the code `starting`."""
        return {"ok": True, "ready": True}

    @router.get("/api/stats")
    def stats() -> dict[str, Any]:
        """Tell queue length, memory in use and seconds per step."""
        return {**service.stats(), "engine": service.engine()}

    return router
