"""The ASGI layer in front of everything: owners, closed paths, foreign sites, headers, the changed page."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from realchar.errors import StorageError
from ui.gate import COOKIE, LOCAL_HOSTS, Gate, load_key

KEY = b"k" * 32
HEAD = "<script>/* ours */</script>"


async def whoami(request: Request) -> JSONResponse:
    return JSONResponse({"owner": request.state.owner})


async def page(_request: Request) -> HTMLResponse:
    return HTMLResponse("<html><head><title>x</title></head></html>")


async def script(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("1", media_type="text/javascript")


def client(key: bytes = KEY, **options: Any) -> TestClient:
    routes = [
        Route("/", page),
        Route("/api/who", whoami, methods=["GET", "POST"]),
        Route("/rc/client.js", script),
        Route("/gradio_api/file=x", script),
        Route("/gradio_api/upload", script, methods=["POST"]),
        Route("/monitoring", script),
    ]
    return TestClient(Gate(Starlette(routes=routes), key, HEAD), **options)


def test_owner_stays_the_same_and_two_browsers_differ() -> None:
    first, second = client(), client()
    owner = first.get("/api/who").json()["owner"]
    assert first.get("/api/who").json()["owner"] == owner
    assert second.get("/api/who").json()["owner"] != owner


def test_cookie_is_hidden_from_scripts_and_secure_on_https() -> None:
    plain = client().get("/").headers["set-cookie"]
    assert "HttpOnly" in plain and "SameSite=Lax" in plain and "Secure" not in plain
    assert "Secure" in client(base_url="https://testserver").get("/").headers["set-cookie"]


@pytest.mark.parametrize("value", ["stranger.", "stranger", "stranger.00", "", "a.b.c", 'x"; y', "ä.b"])
def test_forged_cookie_is_nobody(value: str) -> None:
    answer = client().get("/api/who", headers={"cookie": f"{COOKIE}={value}".encode()})
    assert answer.json()["owner"] != value.partition(".")[0]
    assert COOKIE in answer.headers["set-cookie"]


def test_cookie_of_another_key_is_nobody() -> None:
    one = client()
    owner = one.get("/api/who").json()["owner"]
    other = client(key=b"z" * 32)
    other.cookies.set(COOKIE, one.cookies[COOKIE])
    assert other.get("/api/who").json()["owner"] != owner


@pytest.mark.parametrize("name", ["owner", "x-owner", "rc_owner", "x-forwarded-user"])
def test_client_can_not_name_its_owner(name: str) -> None:
    answer = client().get(f"/api/who?{name}=victim", headers={name: "victim"})
    assert answer.json()["owner"] != "victim"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://testserver"}, 200),
        ({"sec-fetch-site": "same-origin", "origin": "https://proxy.example"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://testserver:99"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_other_sites_can_not_change_anything(headers: dict[str, str], status: int) -> None:
    answer = client().post("/api/who", headers=headers)
    assert answer.status_code == status
    assert client().get("/api/who", headers=headers).status_code == 200
    if status == 403:
        assert answer.json()["code"] == "origin"


@pytest.mark.parametrize("path", ["/gradio_api/file=x", "/monitoring", "/login", "/apix", "/gradio_api/proxy=http://x"])
def test_unused_paths_are_closed(path: str) -> None:
    answer = client().get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_gradio_upload_is_closed() -> None:
    assert client().post("/gradio_api/upload").status_code == 404


@pytest.mark.parametrize("path", ["/", "/api/who", "/monitoring", "/rc/client.js"])
def test_every_answer_has_the_headers(path: str) -> None:
    headers = client().get(path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["x-frame-options"] == "SAMEORIGIN"


def test_caching() -> None:
    assert client().get("/").headers["cache-control"] == "no-store"
    assert client().get("/api/who").headers["cache-control"] == "no-store"
    assert "immutable" in client().get("/rc/client.js?v=1").headers["cache-control"]
    assert "cache-control" not in client().get("/rc/client.js").headers
    assert "set-cookie" not in client().get("/rc/client.js?v=1").headers


def test_page_gets_our_head_first() -> None:
    answer = client().get("/")
    assert answer.text.startswith(f"<html><head>{HEAD}<title>")
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_page_without_a_head_is_an_error() -> None:
    async def bare(_request: Request) -> HTMLResponse:
        return HTMLResponse("<p>no head</p>")

    with pytest.raises(RuntimeError, match="no <head>"):
        TestClient(Gate(Starlette(routes=[Route("/", bare)]), KEY, HEAD)).get("/")


def test_websockets_are_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    asyncio.run(Gate(Starlette(), KEY, HEAD)({"type": "websocket", "path": "/"}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1000}]


def test_key_is_made_once_and_private(tmp_path: Path) -> None:
    key = load_key(tmp_path / "data")
    assert len(key) == 32 and load_key(tmp_path / "data") == key
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "data" / "cookie.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "abcd", "no hex"])
def test_a_damaged_key_is_made_anew(tmp_path: Path, content: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "cookie.key").write_text(content, encoding="ascii")
    key = load_key(data)
    assert len(key) == 32 and load_key(data) == key
    assert [path.name for path in data.iterdir()] == ["cookie.key"]


def test_a_key_that_can_not_be_used_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "cookie.key").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"cookie\.key") as found:
        load_key(data)
    assert found.value.code == "folder"
    assert [path.name for path in data.iterdir()] == ["cookie.key"]


def test_a_key_that_can_not_be_written_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_part: Path, _target: Path) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StorageError, match="Read-only file system"):
        load_key(tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:7860", 200), ("localhost", 200), ("[::1]:7860", 200), ("evil.example:7860", 403), ("", 403)],
)
def test_a_local_app_answers_to_local_names_only(host: str, status: int) -> None:
    routes = [Route("/api/who", whoami)]
    local = TestClient(Gate(Starlette(routes=routes), KEY, HEAD, LOCAL_HOSTS))
    assert local.get("/api/who", headers={"host": host}).status_code == status
    anywhere = TestClient(Gate(Starlette(routes=routes), KEY, HEAD))
    assert anywhere.get("/api/who", headers={"host": host}).status_code == 200
