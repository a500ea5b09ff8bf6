"""The ASGI layer in front of everything: who is asking, which paths exist, what the answers may do in a browser."""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
from collections.abc import Awaitable, Callable
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from realchar.errors import StorageError

COOKIE = "rc_owner"
YEAR_S = 365 * 86400
KEY_BYTES = 32
SAFE = ("GET", "HEAD", "OPTIONS")
# What the page and scripts need; every other path of Gradio's (proxy, files, streams, recorder, editor …) is closed.
OPEN = re.compile(
    r"/|/healthz|/openapi\.json|/favicon\.ico|/robots\.txt|/config/?|/theme\.css"
    r"|/(api|rc|assets|static|svelte)/.*"
    r"|/gradio_api/(theme\.css|startup-events|info/?|heartbeat/[^/]*|queue/(join|data)|run/[^/]*|call/[^/]*(/[^/]*)?)"
)
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; base-uri 'self'; form-action 'self'; "
    "object-src 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "SAMEORIGIN",
}


LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def load_key(data: Path) -> bytes:
    """Return the secret that signs cookies; made once, readable by the owner of the data folder only.

    Raises StorageError where the file can't be read or written: with another key every visitor would lose their jobs.
    """
    file = data / "cookie.key"
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError, ValueError):
            key = bytes.fromhex(file.read_text(encoding="ascii"))
            if len(key) == KEY_BYTES:
                return key
        return _new_key(file)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        message = f"The key of the app's cookies, {str(file)!r}, can't be used ({reason}); remove it or choose another data folder."
        raise StorageError("folder", message, path=str(file)) from None


def _new_key(file: Path) -> bytes:
    """Write a new key, whole before it has its name: one that is cut short could be forged."""
    key = secrets.token_bytes(KEY_BYTES)
    part = file.with_name(f".{secrets.token_hex(6)}.key")
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="ascii") as out:
            out.write(key.hex())
        part.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    return key


class Gate:
    """Wraps the app. `head` is put at the start of the page's `<head>`, before any script of Gradio's runs.

    `hosts` are the host names that requests may name, None for any. An app that listens on this machine only must name
    them: else a page of another site could reach it by a name of its own that it points to this machine.
    """

    def __init__(self, app: ASGIApp, key: bytes, head: str, hosts: frozenset[str] | None = None) -> None:
        self.app = app
        self.hosts = hosts
        self.head = head.encode()
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":  # nothing here speaks it
                await send({"type": "websocket.close", "code": 1000})
            return
        headers = Headers(scope=scope)
        owner = self._owner_in(headers)
        fresh = None if owner else secrets.token_urlsafe(16)
        scope["state"] = {**scope.get("state", {}), "owner": owner or fresh}
        path = scope["path"]
        cookie = self._cookie(fresh, scope) if fresh and (path == "/" or path.startswith("/api/")) else None
        answer = _decorated(send, scope, cookie)
        if self.hosts is not None and urlsplit(f"//{headers.get('host', '')}").hostname not in self.hosts:
            await _refuse(403, "host", "The app listens on this machine only; open it as 127.0.0.1 or localhost.")(
                scope, receive, answer
            )
        elif not OPEN.fullmatch(path):
            await _refuse(404, "not_found", "There is nothing at this address; open the start page.")(
                scope, receive, answer
            )
        elif scope["method"] not in SAFE and not _same_origin(headers):
            await _refuse(403, "origin", "This request comes from another site; use the app's own page.")(
                scope, receive, answer
            )
        elif path == "/" and scope["method"] == "GET":
            # Uncompressed, because the page is changed on its way out.
            plain = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
            await self.app({**scope, "headers": plain}, receive, _injecting(answer, self.head))
        else:
            await self.app(scope, receive, answer)

    def _owner_in(self, headers: Headers) -> str | None:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return None
        if COOKIE not in cookies:
            return None
        owner, _, signature = cookies[COOKIE].value.partition(".")
        return owner if hmac.compare_digest(signature.encode(), self._sign(owner).encode()) else None

    def _sign(self, owner: str) -> str:
        return hmac.new(self._key, owner.encode(), sha256).hexdigest()

    def _cookie(self, owner: str, scope: Scope) -> str:
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        return f"{COOKIE}={owner}.{self._sign(owner)}; Path=/; Max-Age={YEAR_S}; HttpOnly; SameSite=Lax{secure}"


def _same_origin(headers: Headers) -> bool:
    """Tell whether a changing request is the page's own; scripts send neither header and are let through."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def _refuse(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": message, "args": {}}, status)


def _decorated(send: Send, scope: Scope, cookie: str | None) -> Callable[[Message], Awaitable[None]]:
    hashed = scope["path"].startswith("/rc/") and b"v=" in scope.get("query_string", b"")

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            if hashed and message["status"] == 200:
                headers["Cache-Control"] = "public, max-age=31536000, immutable"
            kind = headers.get("content-type", "")
            if kind.startswith(("text/html", "application/json")):
                headers.setdefault("Cache-Control", "no-store")
            if cookie:
                headers.append("Set-Cookie", cookie)
        await send(message)

    return answer


def _injecting(send: Send, head: bytes) -> Callable[[Message], Awaitable[None]]:
    start: Message = {}
    body = bytearray()

    async def answer(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        body.extend(message.get("body", b""))
        if message.get("more_body"):
            return
        before, anchor, after = bytes(body).partition(b"<head>")
        if not anchor:
            raise RuntimeError("the page has no <head>: Gradio's template has changed, adapt the gate")
        page = before + anchor + head + after
        MutableHeaders(scope=start)["Content-Length"] = str(len(page))
        await send(start)
        await send({"type": "http.response.body", "body": page})

    return answer
