"""What every answer of the routes keeps to: JSON that always encodes, and refusals as one sentence with a code."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from realchar.errors import InvalidInput, RealCharError

Problem = Mapping[str, Any]  # one entry of pydantic's list of errors


def dump(data: Any) -> str:
    """Return JSON in ASCII: a half of a surrogate pair must not end an answer, and NaN, which no JSON has, is null."""
    try:
        return json.dumps(data, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(data), allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return data


class Answer(JSONResponse):
    def render(self, content: Any) -> bytes:
        return dump(content).encode("ascii")


def refusal(error: RealCharError) -> Answer:
    return Answer(error.to_json(), error.http_status)


def whole(text: str | None) -> int | None:
    """Return the number that `text` is written as, at most 2⁶³ − 1 (what a database holds), or None for other text."""
    if not text or not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0") or "0"
    return min(int(digits), 2**63 - 1) if len(digits) < 20 else 2**63 - 1


# ---- requests that do not fit, in words of our own

NEEDED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "string": "a text",
    "bool": "true or false",
    "list": "a list",
    "model": "an object",
    "dict": "an object",
}
LIMITS = {
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "string_too_short": "{min_length} characters or longer",
    "string_too_long": "{max_length} characters or shorter",
}
_short = reprlib.Repr()
_short.maxstring = _short.maxlong = _short.maxother = 60


def invalid(errors: Sequence[Problem]) -> InvalidInput:
    """Return the first of the errors that pydantic found as a sentence."""
    first = errors[0]
    kind, place = first["type"], [str(part) for part in first["loc"][1:]]
    if kind == "json_invalid":
        return InvalidInput("request", "The body is not valid JSON.", field="")
    field = ".".join(place)
    if not field and isinstance(first["input"], bytes):  # it was not even read as JSON
        return InvalidInput("request", "The body must be JSON, sent with 'Content-Type: application/json'.", field="")
    name = _short.repr(field) if field else "The body"
    if kind == "missing":
        return InvalidInput("request", f"{name} is missing.", field=field)
    if kind == "extra_forbidden":
        return InvalidInput("request", f"{name} is not known.", field=field)
    needed = _needed(kind, first.get("ctx", {}))
    must = f"must be {needed}" if needed else "can't be used"
    got = "" if needed == NEEDED["model"] else f" (got {_shown(first['input'])})"
    return InvalidInput("request", f"{name} {must}{got}.", field=field)


def _needed(kind: str, context: Mapping[str, Any]) -> str:
    if kind == "literal_error":
        return "one of " + str(context["expected"]).replace(" or ", ", ")
    if kind in LIMITS:
        return LIMITS[kind].format(**context)
    return NEEDED.get(kind.partition("_")[0], "")


def _shown(value: object) -> str:
    """Return a value as JSON writes it, shortened."""
    return {"True": "true", "False": "false", "None": "null"}.get(text := _short.repr(value), text)


# ---- what no route answers


def add_handlers(app: FastAPI) -> None:
    """Give unknown addresses and wrong methods the form that all errors have."""

    async def by_status(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 405:
            possible = dict(getattr(error, "headers", None) or {}).get("Allow", "")
            message = f"{request.method} is not possible at this address; use {possible or 'another method'}."
            answer = Answer({"code": "method", "message": message, "args": {"allow": possible}}, 405)
            if possible:
                answer.headers["Allow"] = possible
            return answer
        return unreadable() if status == 400 else nothing_here()

    async def malformed(_request: Request, error: Exception) -> Response:
        return refusal(invalid(error.errors() if isinstance(error, RequestValidationError) else []))

    app.add_exception_handler(HTTPException, by_status)
    app.add_exception_handler(RequestValidationError, malformed)


def unreadable() -> Answer:
    """Answer a body that could not even be read, such as JSON that is nested too deeply."""
    return refusal(InvalidInput("request", "The body is not valid JSON.", field=""))


def nothing_here() -> Answer:
    message = "There is nothing at this address; the routes are listed in docs/api.md."
    return Answer({"code": "not_found", "message": message, "args": {}}, 404)
