"""The worker ends every job, whatever happens in it, and leaves no file of a job that failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from realchar.engine.together import Ask
from realchar.errors import ModelError, StorageError
from realchar.jobs.rows import UploadRow
from realchar.jobs.store import JobStore
from realchar.runner import EngineRunner
from realchar.schema import EditRequest, Event, Job, JobState, Stage, Step, Tick
from realchar.settings import Offload, Settings, Strategy
from realchar.worker import PREVIEW_BYTES, PREVIEW_LADDER, Worker, preview_jpeg
from tests.scripted import Script, ScriptedRunner, write_all


@pytest.fixture
def settings() -> Settings:
    settings = Settings.load()
    settings.files.mkdir(parents=True)
    return settings


@pytest.fixture
def store(settings: Settings) -> JobStore:
    store = JobStore(settings.database, lease_s=2)
    (settings.files / "u.upload").write_bytes(b"x")
    store.add_upload(UploadRow("u", "ann", "my cat.webp", "u.upload", "image/webp", {}))
    return store


def run(settings: Settings, store: JobStore, script: Script, *, stamp: bool = True) -> Job:
    job = store.submit("ann", "u", "my cat.webp", EditRequest(prompt="p", seed=7, stamp=stamp))
    worker = Worker(settings, store, ScriptedRunner(script), "w")
    claimed = store.claim("w")
    assert claimed is not None
    worker.work(claimed)
    ended = store.find(job.id)
    assert ended is not None
    return ended


def good(job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event]:
    yield Stage("denoise")
    yield Tick()
    yield Step(1, 1, 0.5, 0.0, Image.new("RGB", (32, 24), "red"))
    yield write_all(targets)


def test_a_good_job_is_done_with_its_files(settings: Settings, store: JobStore) -> None:
    job = run(settings, store, good)
    assert job.state is JobState.DONE and job.result is not None
    assert set(job.result["files"]) == {"before", "clean", "stamped"}
    file = store.find_file(job.result["files"]["stamped"], "ann")
    assert file is not None and file.download == "my cat_realchar_s7.png"
    assert [e.kind for e in store.events(0, job=job.id)] == ["job", "job", "stage", "step", "saved", "job"]


def test_without_stamp_there_is_no_stamped_file(settings: Settings, store: JobStore) -> None:
    job = run(settings, store, good, stamp=False)
    assert job.result is not None and set(job.result["files"]) == {"before", "clean"}


def test_a_known_error_is_the_jobs_error(settings: Settings, store: JobStore) -> None:
    def script(job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event]:
        yield Stage("load")
        targets["clean"].write_bytes(b"half")
        raise ModelError("lora_base", "LoRA 'x' does not fit.", file="x")

    job = run(settings, store, script)
    assert job.state is JobState.FAILED
    assert job.error == {"code": "lora_base", "message": "LoRA 'x' does not fit.", "args": {"file": "x"}}
    assert [p.name for p in settings.files.iterdir()] == ["u.upload"]


def test_an_unknown_error_is_a_sentence_with_a_reference(
    settings: Settings, store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    def script(job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event]:
        yield Stage("load")
        raise ZeroDivisionError("secret detail")

    job = run(settings, store, script)
    assert job.state is JobState.FAILED and job.error is not None
    assert job.error["code"] == "unknown" and "secret" not in job.error["message"]
    assert job.error["args"]["ref"] in caplog.text and "secret detail" in caplog.text


def test_cancel_is_seen_at_the_next_tick_and_closes_the_run(settings: Settings, store: JobStore) -> None:
    seen: list[str] = []

    def script(job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event]:
        try:
            yield Stage("denoise")
            store.cancel(job.id, "ann")
            seen.append("cancelled")
            yield Tick()
            seen.append("went on")
        finally:
            seen.append("closed")

    job = run(settings, store, script)
    assert job.state is JobState.CANCELLED and job.error is None
    assert seen == ["cancelled", "closed"]


def test_cancel_just_before_the_end_leaves_no_result(settings: Settings, store: JobStore) -> None:
    def script(job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event]:
        saved = write_all(targets)
        store.release("w")  # the job is somebody else's by now
        yield saved

    job = run(settings, store, script)
    assert job.state is JobState.QUEUED and job.result is None
    assert [p.name for p in settings.files.iterdir()] == ["u.upload"]


def test_a_vanished_upload_is_a_sentence(settings: Settings, store: JobStore) -> None:
    (settings.files / "u.upload").unlink()
    job = run(settings, store, good)
    assert job.state is JobState.FAILED and job.error is not None and job.error["code"] == "upload_gone"


def test_the_lease_is_renewed_while_a_stage_says_nothing(settings: Settings, store: JobStore) -> None:
    def script(job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event]:
        yield Stage("load")
        time.sleep(2.6)  # longer than the lease of 2 s
        assert not store.expired("w")
        yield write_all(targets)

    assert run(settings, store, script).state is JobState.DONE


@pytest.mark.parametrize(
    ("error", "code"),
    [(ModelError("base_missing", "No base at 'x'."), "base_missing"), (RuntimeError("what no one expects"), None)],
)
def test_a_base_that_does_not_load_is_told_and_serving_goes_on(
    settings: Settings, store: JobStore, error: Exception, code: str | None
) -> None:
    worker = Worker(settings, store, ScriptedRunner(good, load_error=error), "w")
    thread = threading.Thread(target=worker.serve)
    job = store.submit("ann", "u", "a.png", EditRequest(prompt="p"))
    thread.start()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not (found := store.find(job.id)).state.ended:  # type: ignore[union-attr]
        time.sleep(0.02)
    worker.stop.set()
    thread.join()
    engine = store.last_event("engine")
    assert engine is not None and engine.payload["state"] == "down"
    assert engine.payload.get("error", {}).get("code") == code
    assert found is not None and found.state is JobState.DONE  # the scripted run itself needs no base


@pytest.mark.parametrize("size", [(1, 40), (40, 1), (64, 48), (512, 512)])
def test_previews_are_small_jpegs(size: tuple[int, int]) -> None:
    import io

    noise = Image.effect_noise(size, 120).convert("RGB")
    data = preview_jpeg(noise)
    assert len(data) <= PREVIEW_BYTES
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "JPEG" and max(image.size) in [edge for edge, _ in PREVIEW_LADDER]


def test_a_full_disk_fails_the_job_with_a_sentence_once_there_is_room(
    settings: Settings, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realchar.worker.STORAGE_RETRY_S", 0.01)
    room = False
    tries = 0
    write = store._db.write

    def full() -> Any:
        nonlocal tries
        tries += 1
        if room or tries > 4:
            return write()
        raise StorageError("disk", "The disk is full; free some space.")

    def script(job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event]:
        write_all(targets)
        monkeypatch.setattr(store._db, "write", full)
        yield Stage("finish")

    job = run(settings, store, script)
    assert tries > 4
    assert job.state is JobState.FAILED and job.error is not None and job.error["code"] == "disk"
    assert [p.name for p in settings.files.iterdir()] == ["u.upload"]


# ---- several jobs in one loop


def stepping(job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event | Ask]:
    """As an engine does: asks for each of as many steps as the job has."""
    yield Stage("denoise")
    for i in range(job.request.steps):
        yield Ask([])
        yield Step(i + 1, job.request.steps, 0.1, 0.0)
    if job.request.prompt == "fail":
        raise ModelError("lora_base", "No.")
    yield write_all(targets)


def queue(store: JobStore, *requests: EditRequest) -> list[Job]:
    return [store.submit("ann", "u", "a.webp", request) for request in requests]


def work_all(settings: Settings, store: JobStore, width: int, script: Script = stepping) -> Worker:
    worker = Worker(settings, store, ScriptedRunner(script, width=width), "w")
    while (claimed := store.claim("w")) is not None:
        worker.work(claimed)
    return worker


def states(store: JobStore, jobs: list[Job]) -> list[JobState | None]:
    return [found.state if (found := store.find(job.id)) else None for job in jobs]


def order(store: JobStore, kind: str) -> list[str]:
    return [event.job or "" for event in store.events(0) if event.kind == kind]


def test_jobs_that_may_share_a_loop_take_their_steps_in_turn(settings: Settings, store: JobStore) -> None:
    jobs = queue(store, *(EditRequest(prompt="p", steps=steps) for steps in (2, 3, 1)))
    work_all(settings, store, width=2)
    assert states(store, jobs) == [JobState.DONE] * 3
    a, b, c = (job.id for job in jobs)
    assert order(store, "step") == [a, b, a, b, b, c]  # "c" joins once "a" has ended, behind "b"
    assert (
        len({name for job in jobs if (found := store.find(job.id)) for name in (found.result or {})["files"].values()})
        == 9
    )


def test_one_that_fails_or_is_cancelled_leaves_the_others(settings: Settings, store: JobStore) -> None:
    jobs = queue(store, *(EditRequest(prompt=prompt, steps=3) for prompt in ("fail", "p", "cancel", "p")))

    def script(job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event | Ask]:
        for event in stepping(job, source, targets):
            yield event
            if job.request.prompt == "cancel" and isinstance(event, Step):
                store.cancel(job.id, "ann")

    work_all(settings, store, 4, script)
    assert states(store, jobs) == [JobState.FAILED, JobState.DONE, JobState.CANCELLED, JobState.DONE]
    assert order(store, "step").count(jobs[2].id) == 1
    done = [store.find(job.id) for job in (jobs[1], jobs[3])]
    kept = {name for job in done if job for name in (job.result or {})["files"].values()}
    assert {path.name for path in settings.files.iterdir()} == kept | {"u.upload"}


def test_a_full_disk_fails_the_job_that_met_it(
    settings: Settings, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = queue(store, *(EditRequest(prompt="p", steps=2) for _ in range(2)))
    original = store.append

    def append(job: Job, *rest: Any, **more: Any) -> bool:
        if job.id == jobs[0].id and rest[1] == "step":
            raise StorageError("disk", "The disk is full.")
        return original(job, *rest, **more)

    monkeypatch.setattr(store, "append", append)
    work_all(settings, store, 2)
    assert states(store, jobs) == [JobState.FAILED, JobState.DONE]


def test_nobody_overtakes_a_job_that_can_not_join(
    settings: Settings, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = queue(store, *(EditRequest(prompt=prompt, steps=2) for prompt in ("p", "alone", "p")))
    monkeypatch.setattr(ScriptedRunner, "joins", lambda self, job: job.request.prompt != "alone")
    work_all(settings, store, 4)
    assert states(store, jobs) == [JobState.DONE] * 3
    a, b, c = (job.id for job in jobs)
    assert order(store, "step") == [a, a, b, c, b, c]


def test_what_crashed_a_worker_is_tried_again_alone(settings: Settings, store: JobStore) -> None:
    """Else a picture that ends the process twice would take all beside it along."""
    jobs = queue(store, *(EditRequest(prompt="p", steps=2) for _ in range(3)))
    assert store.claim("dead") and store.claim("dead")
    store.release("dead")
    work_all(settings, store, 4)
    assert states(store, jobs) == [JobState.DONE] * 3
    a, b, c = (job.id for job in jobs)
    assert order(store, "step") == [a, a, b, b, c, c]


def test_leases_of_all_are_renewed(settings: Settings, store: JobStore) -> None:
    jobs = queue(store, *(EditRequest(prompt="p", steps=1) for _ in range(2)))
    seen: list[bool] = []

    def script(job: Job, source: Path, targets: dict[str, Path]) -> Iterator[Event | Ask]:
        yield from stepping(job, source, targets)
        if not seen:
            time.sleep(2.5)  # longer than a lease
            seen.append(store.expired("w"))

    work_all(settings, store, 2, script)
    assert seen == [False] and states(store, jobs) == [JobState.DONE] * 2


@pytest.mark.slow
def test_the_engine_makes_queued_jobs_together_with_the_pictures_of_each(
    settings: Settings, store: JobStore, tmp_path: Path
) -> None:
    pictures: list[list[bytes]] = []
    for strategy in (Strategy.AUTO, Strategy.BATCH):
        own = replace(settings, offload=Offload.STREAM, resident_blocks=3, strategy=strategy)
        Image.new("RGB", (64, 48), "teal").save(settings.files / "u.upload", "PNG")
        jobs = queue(store, *(EditRequest(prompt="p", steps=2, cfg=cfg, seed=3) for cfg in (1.0, 2.0)))
        worker = Worker(own, store, EngineRunner(own), "w")
        while (claimed := store.claim("w")) is not None:
            worker.work(claimed)
        ended = [found for job in jobs if (found := store.find(job.id))]
        assert [job.state for job in ended] == [JobState.DONE] * 2
        files = [settings.files / (job.result or {})["files"]["clean"] for job in ended]
        pictures.append([Image.open(file).tobytes() for file in files])
    assert pictures[0] == pictures[1] and pictures[0][0] != pictures[0][1]
    steps = order(store, "step")[4:]
    assert steps == [jobs[0].id, jobs[1].id] * 2, "the second pair took its steps in turn"
