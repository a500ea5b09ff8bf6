"""What all routes share: the owner of a request, and errors as one sentence with a code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from realchar.errors import InvalidInput, RealCharError


def owner_of(request: Request) -> str:
    """Return who is asking, as the ASGI layer around the app found it; a value of the client's is never looked at."""
    owner: str = request.state.owner
    return owner


Owner = Annotated[str, Depends(owner_of)]


class SentenceRoute(APIRoute):
    """Answers `RealCharError` with its own status and JSON, and a malformed request with a sentence too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except RealCharError as error:
                return JSONResponse(error.to_json(), error.http_status)
            except RequestValidationError as error:
                first = error.errors()[0]
                field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
                wrong = InvalidInput("request", f"The field {field!r} is not usable: {first['msg']}.", field=field)
                return JSONResponse(wrong.to_json(), wrong.http_status)

        return answer
