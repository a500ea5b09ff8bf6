"""The HTTP routes over a scripted service, through the gate as in the app."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from PIL import Image, PngImagePlugin
from starlette.testclient import TestClient

from realchar.api import create_router
from realchar.api.events import BACKLOG, Hub, Watcher
from realchar.settings import Settings
from tests.fakes import FakeService, Weights
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
    app = FastAPI()
    app.include_router(create_router(service))  # type: ignore[arg-type]
    browser = TestClient(Gate(app, b"k" * 32, ""))
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
    job = submit(client, cfg=5.5, seed=7, loras=[{"name": service.listing[0].name, "strength": 0.8}])
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
    "fields",
    [{"steps": "many"}, {"owner": "victim"}, {"size": "huge"}, {"loras": ["x"]}, {"upload": None}, {"key": "x"}],
)
def test_malformed_request_is_a_sentence(client: TestClient, fields: dict[str, Any]) -> None:
    answer = client.post("/api/jobs", json={"upload": "x", **fields})
    assert answer.status_code == 422
    assert answer.json()["code"] == "request" and next(iter(fields)) in answer.json()["message"]


def test_service_errors_keep_their_status(client: TestClient) -> None:
    assert client.post("/api/jobs", json={"upload": "gone"}).status_code == 404
    answer = client.post("/api/jobs", json={"upload": put(client)["id"], "prompt": " "})
    assert (answer.status_code, answer.json()["code"]) == (422, "prompt")


@pytest.mark.parametrize("method", ["post", "delete"])
def test_cancel(client: TestClient, service: FakeService, method: str) -> None:
    job = submit(client, steps=50)
    url = f"/api/jobs/{job['id']}"
    assert (client.post(url + "/cancel") if method == "post" else client.delete(url)).status_code == 200
    assert wait(client, job, "cancelled")["result"] is None


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


def test_new_weights_and_positions_are_told(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realchar.api.events.SLOW_S", 0.2)

    async def read() -> list[str]:
        kinds: list[str] = []
        stream = Hub(service).stream("nobody")  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            async for text in stream:
                kinds.append(text.split("event: ")[-1].split("\n")[0])
                if kinds[-1] == "stats" and kinds.count("stats") == 2:  # the first look only remembers the listing
                    service.listing.insert(0, Weights("new_0009000", "new", 9000))
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
