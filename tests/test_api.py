"""The HTTP routes over a scripted service, through the gate as in the app."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin
from starlette.testclient import TestClient

from realchar.api import create_app
from realchar.api.answers import whole
from realchar.api.events import BACKLOG, Hub, Watcher
from realchar.errors import InvalidInput, StorageError
from realchar.service import EventRow
from realchar.settings import Settings
from tests.fakes import FakeService, fake_version
from ui.gate import Gate


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FakeService]:
    settings = Settings.load({}, data=tmp_path / "data", weights=tmp_path / "weights", upload_mb=1)
    fake = FakeService(settings, step_s=0.01)
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def client(service: FakeService) -> TestClient:
    return browser(service)


def browser(service: FakeService) -> TestClient:
    """Return a client with its own cookie."""
    browser = TestClient(Gate(create_app(service), b"k" * 32, ""))  # type: ignore[arg-type]
    browser.get("/api/stats")
    return browser


def png(size: tuple[int, int] = (300, 400), **text: str) -> bytes:
    info = PngImagePlugin.PngInfo()
    for key, value in text.items():
        info.add_text(key, value)
    buffer = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").resize(size).save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def put(client: TestClient, body: bytes = b"", name: str = "hero.png") -> dict[str, Any]:
    answer = client.put("/api/uploads", params={"name": name}, content=body or png())
    assert answer.status_code == 201, answer.text
    card: dict[str, Any] = answer.json()
    return card


def submit(client: TestClient, **fields: Any) -> dict[str, Any]:
    upload = fields.pop("upload", None) or put(client)["id"]
    answer = client.post("/api/jobs", json={"upload": upload, "steps": 4, **fields})
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    return job


def wait(client: TestClient, job: dict[str, Any], state: str = "done") -> dict[str, Any]:
    for _ in range(500):
        found: dict[str, Any] = client.get(f"/api/jobs/{job['id']}").json()
        if found["state"] == state:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{found['state']} instead of {state}")


# ---- uploads


def test_upload_returns_the_card(client: TestClient) -> None:
    card = put(client, png((900, 1200)), name="写真 キャラ.png")
    assert card["name"] == "写真 キャラ.png"
    assert (card["source"], card["prepared"]) == ([900, 1200], [288, 384])
    assert client.get(f"/api/media/{card['original']}").status_code == 200


def test_card_for_another_size(client: TestClient) -> None:
    upload = put(client, png((900, 1200)))["id"]
    card = client.get(f"/api/uploads/{upload}", params={"size": "safe", "long_edge": 96}).json()
    assert card["prepared"] == [72, 96]
    assert client.get(f"/api/uploads/{upload}", params={"size": "huge"}).json()["code"] == "request"


@pytest.mark.parametrize("name", ["../../etc/passwd", "..\\..\\x.png", "a/b\x00c.png", ""])
def test_names_are_only_for_display(client: TestClient, name: str) -> None:
    shown = put(client, name=name)["name"]
    assert shown and not set(shown) & set("/\\\x00")


def test_upload_over_the_limit_by_its_header(client: TestClient, service: FakeService) -> None:
    answer = client.put("/api/uploads", content=b"x" * 1_000_001)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_big")
    assert leftovers(service) == []


def test_upload_over_the_limit_without_a_header(client: TestClient, service: FakeService) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 65536

    answer = client.put("/api/uploads", content=endless())
    assert (answer.status_code, answer.json()["code"]) == (413, "too_big")
    assert "limit of 1 MB" in answer.json()["message"]
    assert leftovers(service) == []


@pytest.mark.parametrize(("body", "code"), [(b"", "empty"), (b"<html>no picture</html>", "not_picture")])
def test_unusable_upload_leaves_nothing(client: TestClient, service: FakeService, body: bytes, code: str) -> None:
    answer = client.put("/api/uploads", content=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert leftovers(service) == []


def leftovers(service: FakeService) -> list[Path]:
    folder = service.settings.data / "incoming"
    return list(folder.iterdir()) if folder.exists() else []


# ---- jobs


def test_job_from_submit_to_download(client: TestClient, service: FakeService) -> None:
    job = submit(client, cfg=5.5, seed=7, loras=[{"name": service.listing[0]["name"], "strength": 0.8}])
    assert job["state"] in ("queued", "running") and "owner" not in job
    assert job["request"]["cfg"] == 5.5 and job["request"]["loras"][0]["strength"] == 0.8
    done = wait(client, job)
    stored = done["result"]["files"]["clean"]
    answer = client.get(f"/api/media/{stored}?dl=1")
    assert answer.content == (service.settings.files / stored).read_bytes()
    assert answer.headers["content-type"] == "image/png"
    assert 'filename="picture_clean.png"' in answer.headers["content-disposition"]
    assert "immutable" in answer.headers["cache-control"]


def test_negative_seed_is_drawn_and_kept(client: TestClient) -> None:
    assert submit(client)["request"]["seed"] >= 0


def test_same_key_is_the_same_job(client: TestClient) -> None:
    upload = put(client)["id"]
    first, second = (submit(client, upload=upload, key="0123456789") for _ in range(2))
    assert first["id"] == second["id"]
    assert submit(client, upload=upload, key="abcdefghij")["id"] != first["id"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"steps": "many"}, "'steps' must be a whole number (got 'many')."),
        ({"steps": True}, "'steps' must be a whole number (got true)."),
        ({"steps": "20"}, "'steps' must be a whole number (got '20')."),
        ({"steps": None}, "'steps' must be a whole number (got null)."),
        ({"cfg": "a"}, "'cfg' must be a number (got 'a')."),
        ({"stamp": "yes"}, "'stamp' must be true or false (got 'yes')."),
        ({"prompt": 5}, "'prompt' must be a text (got 5)."),
        ({"size": "huge"}, "'size' must be one of 'safe', 'native' (got 'huge')."),
        ({"loras": ["x"]}, "'loras.0' must be an object."),
        ({"loras": [{"name": "x", "strength": "1"}]}, "'loras.0.strength' must be a number (got '1')."),
        ({"loras": [{}]}, "'loras.0.name' is missing."),
        ({"loras": "x"}, "'loras' must be a list (got 'x')."),
        ({"key": "x"}, "'key' must be 8 characters or longer (got 'x')."),
        ({"foo": 1}, "'foo' is not known."),
        ({"owner": "victim"}, "'owner' is not known."),
        ({"upload": "写真"}, "'upload' can't be used (got '写真')."),
        ({"upload": None}, "'upload' must be a text (got null)."),
    ],
)
def test_malformed_request_is_a_sentence_of_our_own(client: TestClient, fields: dict[str, Any], sentence: str) -> None:
    answer = client.post("/api/jobs", json={"upload": "x", **fields})
    assert (answer.status_code, answer.json()["code"]) == (422, "request")
    assert answer.json()["message"] == sentence


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "The body is not valid JSON."),
        (b"[" * 100_000, "The body is not valid JSON."),
        (b"\xff\xfe", "The body is not valid JSON."),
        (b"[]", "The body must be an object."),
        (b"{}", "'upload' is missing."),
        (b"", "The body is missing."),
        (b'{"upload": "\\ud83d"}', "'upload' can't be used (got '\\ud83d')."),
        (b'{"upload": "x", "cfg": NaN}', "'cfg' must be a number (got nan)."),
    ],
)
def test_unreadable_body_is_a_sentence_of_our_own(client: TestClient, body: bytes, sentence: str) -> None:
    answer = client.post("/api/jobs", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"], answer.json()["message"]) == (422, "request", sentence)


def test_body_without_its_type_says_so(client: TestClient) -> None:
    answer = client.post("/api/jobs", content=b'{"upload": "x"}', headers={"content-type": "text/plain"})
    assert (answer.status_code, "Content-Type: application/json" in answer.json()["message"]) == (422, True)


@pytest.mark.parametrize("value", ["x" * 5000, 10**400, {"a": {"b": ["c"] * 999}}])
def test_long_values_are_shortened(client: TestClient, value: Any) -> None:
    answer = client.post("/api/jobs", json={"upload": "x", "steps": value})
    assert answer.status_code == 422 and len(answer.text) < 250
    assert client.post("/api/jobs", json={"upload": "x", "y" * 5000: 1}).json()["message"].endswith("' is not known.")


def test_query_values_are_checked_too(client: TestClient) -> None:
    assert client.get("/api/jobs?limit=0").json()["message"] == "'limit' must be 1 or more (got '0')."
    assert client.get("/api/jobs?limit=" + "9" * 900).status_code == 422
    assert "must be a whole number" in client.get("/api/jobs?limit=few").json()["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/nothing", 404, "not_found"),
        ("GET", "/api/media/a%2fb", 404, "not_found"),
        ("POST", "/api/jobs/x/y/z", 404, "not_found"),
        ("PATCH", "/api/jobs", 405, "method"),
        ("TRACE", "/api/weights", 405, "method"),
        ("PUT", "/healthz", 405, "method"),
    ],
)
def test_what_no_route_answers_has_the_same_form(
    client: TestClient, method: str, path: str, status: int, code: str
) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json().keys() == {"code", "message", "args"}
    assert "Not Found" not in answer.text and "Not Allowed" not in answer.text
    if status == 405:
        assert answer.headers["allow"] == answer.json()["args"]["allow"] != ""


# ---- answers that always encode


def test_half_a_surrogate_pair_does_not_end_an_answer(client: TestClient, service: FakeService) -> None:
    body = json.dumps({"upload": put(client)["id"], "steps": 4, "prompt": "so \ud83d"})
    job = client.post("/api/jobs", content=body, headers={"content-type": "application/json"}).json()
    wait(client, job)
    owner = owner_of(service, job)
    listed = client.get("/api/jobs")
    assert listed.status_code == 200 and listed.json()[0]["request"]["prompt"] == "so \ud83d"
    said = listen(service, owner, "hello")
    assert said[0]["jobs"][0]["request"]["prompt"] == "so \ud83d"
    check_row("\ud83d", service, owner)


def check_row(text: str, service: FakeService, owner: str) -> None:
    payload = {"text": text, "x": float("nan")}
    service._rows.append(EventRow(len(service._rows) + 1, owner, "j", 1, "degraded", payload, None, 0.0))
    found = listen(service, owner, "degraded", after=len(service._rows) - 1)[-1]
    assert (found["text"], found["x"]) == (text, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, {"a": float("-inf")}], "\udc00"])
def test_errors_of_the_service_always_encode(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    def refuse(*_args: Any) -> Any:
        raise InvalidInput("strength", f"Strength is {value}, but -2 to 2 is possible.", value=value)

    monkeypatch.setattr(service, "submit", refuse)
    answer = client.post("/api/jobs", json={"upload": "x"})
    assert (answer.status_code, answer.json()["code"]) == (422, "strength")
    monkeypatch.setattr(service, "stats", lambda: {"value": value})
    assert client.get("/api/stats").status_code == 200


def test_unexpected_error_is_a_sentence_with_a_reference(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(service, "versions", broken)
    answer = client.get("/api/weights")
    assert (answer.status_code, answer.json()["code"]) == (500, "unknown")
    assert "secret" not in answer.text
    assert answer.json()["args"]["reference"] in caplog.text and "secret detail" in caplog.text


def test_full_disk_while_receiving_is_a_sentence(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tempfile.NamedTemporaryFile

    def small_disk(**options: Any) -> Any:
        file = real(**options)

        def write(_data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        file.write = write
        return file

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", small_disk)
    answer = client.put("/api/uploads", content=png())
    assert (answer.status_code, answer.json()["code"]) == (507, "disk")
    assert leftovers(service) == []


def test_leftovers_of_a_killed_app_are_removed(service: FakeService) -> None:
    folder = service.settings.data / "incoming"
    folder.mkdir(parents=True)
    (folder / "tmpabc").write_bytes(b"half a picture")
    create_app(service)  # type: ignore[arg-type]
    assert leftovers(service) == []


def test_service_errors_keep_their_status(client: TestClient) -> None:
    assert client.post("/api/jobs", json={"upload": "gone"}).status_code == 404
    answer = client.post("/api/jobs", json={"upload": put(client)["id"], "prompt": " "})
    assert (answer.status_code, answer.json()["code"]) == (422, "prompt")


@pytest.mark.parametrize("method", ["post", "delete"])
def test_cancel(client: TestClient, service: FakeService, method: str) -> None:
    job = submit(client, steps=50)
    url = f"/api/jobs/{job['id']}"
    assert (client.post(url + "/cancel") if method == "post" else client.delete(url)).status_code == 200
    cancelled = wait(client, job, "cancelled")
    assert cancelled["result"] is None
    again = client.post(url + "/cancel")
    assert (again.status_code, again.json()["state"]) == (200, "cancelled")
    assert again.json()["finished"] == cancelled["finished"]


def test_retry_is_a_new_job_with_the_same_request(client: TestClient) -> None:
    job = submit(client, prompt="please fail")
    failed = wait(client, job, "failed")
    assert failed["error"]["code"] == "flat"
    again = client.post(f"/api/jobs/{job['id']}/retry").json()
    assert again["id"] != job["id"] and again["request"] == job["request"]


def test_list_is_newest_first_with_positions(client: TestClient) -> None:
    ids = [submit(client, steps=40)["id"] for _ in range(3)]
    listed = client.get("/api/jobs").json()
    assert [job["id"] for job in listed] == ids[::-1]
    assert listed[0]["position"] == listed[1]["position"] + 1


def test_thumbnail(client: TestClient) -> None:
    job = submit(client)
    wait(client, job)
    answer = client.get(f"/api/jobs/{job['id']}/thumb")
    with Image.open(io.BytesIO(answer.content)) as image:
        assert image.format == "JPEG" and max(image.size) == 192


def test_what_is_another_owners_does_not_exist(client: TestClient, service: FakeService) -> None:
    card, job = put(client), submit(client)
    done = wait(client, job)
    foreign = browser(service)
    assert foreign.get("/api/jobs").json() == []
    for path in (
        f"/api/jobs/{job['id']}",
        f"/api/jobs/{job['id']}/thumb",
        f"/api/uploads/{card['id']}",
        f"/api/media/{card['exact']}",
        f"/api/media/{done['result']['files']['clean']}",
    ):
        assert client.get(path).status_code == 200
        assert foreign.get(path).status_code == 404
    assert foreign.delete(f"/api/jobs/{job['id']}").status_code == 404
    assert foreign.post(f"/api/jobs/{job['id']}/retry").status_code == 404
    assert foreign.post("/api/jobs", json={"upload": card["id"]}).status_code == 404


@pytest.mark.parametrize("name", ["..%2f..%2fjobs.sqlite", "%2e%2e%2fcookie.key", "nothing.png"])
def test_media_names_are_never_paths(client: TestClient, name: str) -> None:
    assert client.get(f"/api/media/{name}").status_code == 404


def test_weights_stats_health(client: TestClient) -> None:
    assert [info["version"] for info in client.get("/api/weights").json()] == [8500, 3056, 500]
    stats = client.get("/api/stats").json()
    assert stats["memory"]["memory"] == "ram" and "state" in stats["engine"]
    assert client.get("/healthz").json() == {"ok": True, "ready": True}
    assert client.head("/healthz").status_code == 200


def test_a_version_is_looked_at_by_its_name(client: TestClient) -> None:
    name = client.get("/api/weights").json()[0]["name"]
    assert client.get("/api/weights/check", params={"name": name}).json()["matched"] == 840
    picture = client.get("/api/weights/picture", params={"name": name})
    assert picture.headers["content-type"] == "image/webp" and picture.content[8:12] == b"WEBP"
    for address in ("/api/weights/check", "/api/weights/picture"):
        for wrong in ("../secret", "nothing", f"{name}\0"):
            answer = client.get(address, params={"name": wrong})
            assert (answer.status_code, answer.json()["code"]) == (404, "weights_unknown")
        assert client.get(address).status_code == 422


def test_a_running_job_is_switched_by_its_owner_only(client: TestClient, service: FakeService) -> None:
    service.step_s = 0.05
    settings = {"upload": put(client)["id"], "steps": 40, "prompt": "Photo."}
    job = client.post("/api/jobs", json=settings).json()
    wait(client, job, "running")
    address, body = f"/api/jobs/{job['id']}/weights", {"loras": [{"name": service.listing[1]["name"], "strength": 0.5}]}
    assert browser(service).post(address, json=body).status_code == 404
    assert client.post(address, json=body).status_code == 200
    deadline = time.monotonic() + 10
    while client.get(f"/api/jobs/{job['id']}").json()["request"]["loras"] != body["loras"]:
        assert time.monotonic() < deadline
    rows = service.events(service._jobs[job["id"]].owner, 0)
    assert [row.payload["loras"] for row in rows if row.kind == "in_effect"] == [body["loras"]]
    wrong: list[tuple[Any, int]] = [({"loras": [{"name": "../x"}]}, 404), ({"loras": "all"}, 422), ({}, 422)]
    for sent, status in wrong:
        assert client.post(address, json=sent).status_code == status
    client.post(f"/api/jobs/{job['id']}/cancel")
    wait(client, job, "cancelled")
    ended = client.post(address, json=body)
    assert (ended.status_code, ended.json()["code"]) == (409, "job_ended")


# ---- the live line


def listen(service: FakeService, owner: str, until: str, after: int = 0, during: Any = None) -> list[dict[str, Any]]:
    """Read a stream up to the first message of kind `until`; `during` is called after `hello`."""

    async def read() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        stream = Hub(service).stream(owner, after)  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            async for text in stream:
                if text.startswith("retry:"):
                    continue
                fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
                found.append({"kind": fields["event"], "id": int(fields.get("id", 0)), **json.loads(fields["data"])})
                if found[-1]["kind"] == "hello" and during:
                    during()
                if found[-1]["kind"] == until and (until != "job" or found[-1]["state"] == "done"):
                    break
        await stream.aclose()  # type: ignore[attr-defined]
        tail = [task for task in asyncio.all_tasks() if task.get_name() == "live line"]
        for task in tail:
            task.cancel()
        return found

    return asyncio.run(read())


def owner_of(service: FakeService, job: dict[str, Any]) -> str:
    return service._jobs[job["id"]].owner


def test_stream_tells_a_whole_job_in_order(client: TestClient, service: FakeService) -> None:
    first = submit(client)
    wait(client, first)
    owner = owner_of(service, first)
    said = listen(service, owner, "job", during=lambda: submit(client))
    assert said[0]["kind"] == "hello" and said[0]["jobs"][0]["id"] == first["id"]
    kinds = [message["kind"] for message in said]
    assert [message["i"] for message in said if message["kind"] == "step"] == [1, 2, 3, 4]
    assert kinds.index("plan") < kinds.index("step") < kinds.index("saved")
    preview = next(message for message in said if message["kind"] == "step")["preview"]
    assert preview.startswith("data:image/jpeg;base64,")
    ids = [message["id"] for message in said if message["id"]]
    assert ids == sorted(ids)


def test_stream_hides_other_owners(client: TestClient, service: FakeService) -> None:
    submit(client)
    foreign = browser(service)
    mine = submit(foreign)
    wait(foreign, mine)
    said = listen(service, owner_of(service, mine), "job", during=lambda: (submit(client), submit(foreign)))
    own = {job["id"] for job in foreign.get("/api/jobs").json()}
    assert {message["job"] for message in said if message.get("job")} <= own
    assert {job["id"] for job in said[0]["jobs"]} <= own


def test_page_that_starts_in_the_middle_gets_the_newest_step(client: TestClient, service: FakeService) -> None:
    service.step_s = 0.05
    job = submit(client, steps=60)
    for _ in range(200):
        if sum(row.kind == "step" for row in service._rows) > 8:
            break
        time.sleep(0.02)
    said = listen(service, owner_of(service, job), "step")
    assert said[0]["jobs"][0]["state"] == "running"
    assert [message["kind"] for message in said].count("stage") == 1
    assert any(message["kind"] == "plan" for message in said)
    assert said[-1]["i"] > 8 and said[-1]["preview"]
    client.delete(f"/api/jobs/{job['id']}")


def test_reconnect_continues_after_the_last_row(client: TestClient, service: FakeService) -> None:
    job = submit(client)
    wait(client, job)
    saved = next(row for row in service._rows if row.kind == "saved")
    said = listen(service, owner_of(service, job), "job", after=saved.id - 1)
    assert [message["kind"] for message in said] == ["hello", "saved", "job"]


def test_row_beyond_the_last_is_from_now_on(client: TestClient, service: FakeService) -> None:
    job = submit(client)
    wait(client, job)
    said = listen(service, owner_of(service, job), "job", after=2**63 - 1, during=lambda: submit(client))
    told = [message["job"] for message in said if message.get("job")]
    assert said[0]["kind"] == "hello" and told and job["id"] not in told


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("12", 12),
        ("0012", 12),
        ("9" * 500, 2**63 - 1),
        ("99999999999999999999", 2**63 - 1),
        ("-1", None),
        ("x", None),
        ("", None),
        ("٣", None),
        ("1.5", None),
        (None, None),
    ],
)
def test_numbers_of_rows_from_outside(text: str | None, row: int | None) -> None:
    assert whole(text) == row


@pytest.mark.parametrize(
    ("query", "header", "seen"),
    [("9" * 500, None, 2**63 - 1), ("5", "7", 7), ("5", "x", 5), ("many", "9" * 500, 2**63 - 1), ("many", None, 0)],
)
def test_stream_takes_any_number(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, query: str, header: str | None, seen: int
) -> None:
    asked: list[int] = []

    async def stream(_hub: Hub, _owner: str, after: int) -> Any:
        asked.append(after)
        yield "retry: 1000\n\n"

    monkeypatch.setattr(Hub, "stream", stream)
    headers = {"last-event-id": header} if header else {}
    assert client.get("/api/events", params={"after": query}, headers=headers).status_code == 200
    assert asked == [seen]


def test_live_line_outlives_a_storage_error(client: TestClient, service: FakeService) -> None:
    real, job = service.last_event, submit(client)
    wait(client, job)
    calls = []

    def sometimes() -> int:
        calls.append(1)
        if len(calls) == 4:
            raise StorageError("database", "The job database can't be read (locked); try again.")
        return real()

    service.last_event = sometimes  # type: ignore[method-assign]
    said = listen(service, owner_of(service, job), "job", during=lambda: submit(client))
    assert said[-1]["state"] == "done" and len(calls) > 4


def test_new_weights_and_positions_are_told(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realchar.api.events.SLOW_S", 0.2)

    async def read() -> list[str]:
        kinds: list[str] = []
        stream = Hub(service).stream("nobody")  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            async for text in stream:
                kinds.append(text.split("event: ")[-1].split("\n")[0])
                if kinds[-1] == "stats" and kinds.count("stats") == 2:  # the first look only remembers the listing
                    service.listing.insert(0, fake_version("new_0009000", "new", 9000))
                if kinds[-1] == "weights":
                    assert "new_0009000" in text
                    break
        await stream.aclose()  # type: ignore[attr-defined]
        for task in asyncio.all_tasks():
            if task.get_name() == "live line":
                task.cancel()
        return kinds

    assert "stats" in asyncio.run(read())


def test_slow_watcher_loses_old_previews_only() -> None:
    async def fill() -> list[tuple[int, str, str]]:
        watcher = Watcher("me")
        watcher.put(1, "job", "")
        for i in range(3 * BACKLOG):
            watcher.put(i + 2, "step", "")
        watcher.put(999, "saved", "")
        found = []
        while (message := await watcher.next(0.01)) is not None:
            found.append(message)
        return found

    found = asyncio.run(fill())
    assert len(found) == BACKLOG
    assert found[0][1] == "job" and found[-1][1] == "saved" and found[-2][0] == 3 * BACKLOG + 1


def test_choices_for_this_machine_travel_and_are_checked(client: TestClient) -> None:
    card = put(client)
    choices = {"offload": "stream", "vram": 6.5, "strategy": "quality"}
    job = submit(client, upload=card["id"], **choices)
    assert {key: job["request"][key] for key in choices} == choices
    plain = submit(client, upload=card["id"])["request"]
    assert [plain[key] for key in choices] == [None, None, None]
    answer = client.get(f"/api/uploads/{card['id']}", params={"vram": 0.5, "offload": "stream"})
    assert answer.json()["total_gb"] == 0.5 and not answer.json()["fits"]
    for name, value in (("vram", "much"), ("offload", 3), ("strategy", True)):
        answer = client.post("/api/jobs", json={"upload": card["id"], name: value})
        assert answer.status_code == 422 and f"'{name}' must be" in answer.json()["message"]
