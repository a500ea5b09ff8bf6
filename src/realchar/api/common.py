"""What all routes share: the owner of a request, and errors as one sentence with a code."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from realchar.api.answers import Answer, invalid, refusal
from realchar.errors import InvalidInput, RealCharError

log = logging.getLogger(__name__)


def owner_of(request: Request) -> str:
    """Return who is asking, as the ASGI layer around the app found it; a value of the client's is never looked at."""
    owner: str = request.state.owner
    return owner


Owner = Annotated[str, Depends(owner_of)]


class SentenceRoute(APIRoute):
    """Answers every error as `{"code", "message", "args"}`: the app's own, malformed requests, and unexpected ones."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # The answers are made here and need no model, whose encoder would stumble over a half of a surrogate pair.
        super().__init__(*args, **{**options, "response_model": None})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except RealCharError as error:
                return refusal(error)
            except RequestValidationError as error:
                return refusal(invalid(error.errors()))
            except HTTPException:
                raise
            except ClientDisconnect:  # nobody reads this
                return refusal(InvalidInput("request", "The connection ended before the request had arrived."))
            except Exception:
                return _unexpected(request)

        return answer


def _unexpected(request: Request) -> Response:
    """Log the exception under a reference and answer with that."""
    reference = secrets.token_hex(4)
    log.exception("%s %s failed, reference %s", request.method, request.url.path, reference)
    message = f"Something went wrong in the app; try again, the log shows more under the reference {reference}."
    return Answer({"code": "unknown", "message": message, "args": {"reference": reference}}, 500)
