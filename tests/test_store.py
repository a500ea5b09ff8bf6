"""The queue: what it promises about claims, leases, crashes, owners and events."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from realchar.errors import StorageError
from realchar.jobs.rows import UploadRow
from realchar.jobs.store import JobStore
from realchar.schema import EditRequest, Job, JobState, LoraRef

REQUEST = EditRequest(prompt="p", seed=1)


class Clock:
    def __init__(self) -> None:
        self.t = 1000.0

    def __call__(self) -> float:
        return self.t


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> JobStore:
    return JobStore(tmp_path / "jobs.sqlite", lease_s=10, now=clock)


def submit(store: JobStore, owner: str = "ann", key: str | None = None) -> Job:
    return store.submit(owner, "up", "cat.png", REQUEST, key=key)


def kinds(store: JobStore, job: Job) -> list[str]:
    return [f"{e.kind}:{e.payload['state']}" if e.kind == "job" else e.kind for e in store.events(0, job=job.id)]


def test_jobs_are_claimed_in_order_and_once(store: JobStore) -> None:
    jobs = [submit(store) for _ in range(3)]
    claimed = [store.claim("w") for _ in range(4)]
    assert [job and job.id for job in claimed] == [*(job.id for job in jobs), None]


def claim_all(path: str, worker: str, got: multiprocessing.Queue[str]) -> None:
    store = JobStore(path)
    while job := store.claim(worker):
        got.put(job.id)
    store.close()


def test_four_processes_claim_every_job_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    store = JobStore(path)
    jobs = {submit(store).id for _ in range(120)}
    context = multiprocessing.get_context("spawn")
    got: multiprocessing.Queue[str] = context.Queue()
    workers = [context.Process(target=claim_all, args=(str(path), f"w{i}", got)) for i in range(4)]
    for worker in workers:
        worker.start()
    claimed = [got.get(timeout=60) for _ in jobs]
    for worker in workers:
        worker.join(timeout=30)
    assert sorted(claimed) == sorted(jobs)
    assert got.empty()


def test_request_survives_the_database(store: JobStore) -> None:
    from realchar.schema import LoraRef

    request = EditRequest(prompt="写真 é", negative_prompt="x", steps=3, cfg=1.5, seed=9, loras=(LoraRef("a/b", 0.5),))
    job = store.submit("ann", "up", "猫.png", request)
    found = store.find(job.id)
    assert found is not None and found.request == request and found.source_name == "猫.png"


def test_same_key_is_the_same_job_for_one_owner_only(store: JobStore) -> None:
    first = submit(store, key="k")
    assert submit(store, key="k").id == first.id
    assert submit(store, owner="bob", key="k").id != first.id
    assert len(store.list_jobs("ann")) == 1


def test_a_crash_queues_again_once_then_interrupts(store: JobStore) -> None:
    job = submit(store)
    assert store.claim("w1") is not None
    assert store.release("w1") == 1
    again = store.find(job.id)
    assert again is not None and again.state is JobState.QUEUED and again.attempt == 1
    assert store.claim("w2") is not None
    store.release("w2")
    ended = store.find(job.id)
    assert ended is not None and ended.state is JobState.INTERRUPTED
    assert ended.error is not None and ended.error["code"] == "twice"
    assert store.claim("w3") is None
    assert kinds(store, job) == ["job:queued", "job:running", "job:queued", "job:running", "job:interrupted"]


def test_an_orderly_stop_is_no_attempt(store: JobStore) -> None:
    submit(store)
    for _ in range(5):
        assert store.claim("w") is not None
        store.release("w", crashed=False)
    assert store.claim("w") is not None


def test_release_touches_only_that_worker(store: JobStore) -> None:
    submit(store)
    submit(store)
    first, second = store.claim("w1"), store.claim("w2")
    assert first is not None and second is not None
    store.release("w1")
    found = store.find(second.id)
    assert found is not None and found.state is JobState.RUNNING
    assert store.release(None) == 1


def test_a_worker_that_lost_its_job_can_write_nothing(store: JobStore) -> None:
    submit(store)
    old = store.claim("w1")
    assert old is not None
    store.release("w1")
    new = store.claim("w2")
    assert new is not None
    before = len(store.events(0))
    assert not store.append(old, "w1", "step", {"i": 1})
    assert not store.beat(old, "w1")
    assert not store.wanted(old, "w1")
    assert not store.finish(old, "w1", JobState.DONE, result={"files": {}})
    assert len(store.events(0)) == before
    assert store.append(new, "w2", "step", {"i": 1})


def test_lease_runs_out_and_is_renewed(store: JobStore, clock: Clock) -> None:
    submit(store)
    job = store.claim("w")
    assert job is not None
    clock.t += 9
    assert not store.expired("w")
    assert store.beat(job, "w")
    clock.t += 9
    assert not store.expired("w")
    clock.t += 2
    assert store.expired("w") and not store.expired("other")


def test_cancel_queued_and_running(store: JobStore) -> None:
    queued, running = submit(store), submit(store)
    assert not store.cancel(queued.id, "bob")
    assert store.cancel(queued.id, "ann")
    found = store.find(queued.id)
    assert found is not None and found.state is JobState.CANCELLED
    job = store.claim("w")
    assert job is not None and job.id == running.id
    assert store.wanted(job, "w")
    assert store.cancel(running.id, "ann")
    assert not store.wanted(job, "w") and not store.beat(job, "w") and not store.append(job, "w", "step", {})
    assert store.finish(job, "w", JobState.CANCELLED)
    assert not store.cancel(running.id, "ann")


def test_a_crash_while_cancelling_ends_as_cancelled(store: JobStore) -> None:
    job = submit(store)
    store.claim("w")
    store.cancel(job.id, "ann")
    store.release("w")
    found = store.find(job.id)
    assert found is not None and found.state is JobState.CANCELLED


def test_finish_publishes_files_to_the_owner_only(store: JobStore) -> None:
    submit(store)
    job = store.claim("w")
    assert job is not None
    store.append(job, "w", "step", {"i": 1}, b"jpeg")
    assert store.events(0)[-1].preview == b"jpeg"
    store.finish(
        job, "w", JobState.DONE, result={"files": {"clean": "x.png"}}, files=(("x.png", "image/png", "cat.png"),)
    )
    assert store.find_file("x.png", "ann") is not None
    assert store.find_file("x.png", "bob") is None
    assert all(event.preview is None for event in store.events(0))


def test_only_the_newest_preview_is_kept(store: JobStore) -> None:
    submit(store)
    job = store.claim("w")
    assert job is not None
    for i in range(4):
        store.append(job, "w", "step", {"i": i}, bytes([i]))
    assert [e.preview for e in store.events(0) if e.kind == "step"] == [None, None, None, b"\x03"]


def test_events_are_the_owners_and_everybodys(store: JobStore) -> None:
    job = submit(store, "ann")
    submit(store, "bob")
    store.broadcast("engine", {"state": "ready"})
    assert [e.owner for e in store.events(0, owner="ann")] == ["ann", None]
    assert [e.kind for e in store.events(0, job=job.id)] == ["job"]
    last = store.last_event("engine")
    assert last is not None and last.payload == {"state": "ready"}
    assert store.events(last.id, owner="ann") == []


def test_positions_count_the_running_job(store: JobStore) -> None:
    jobs = [submit(store) for _ in range(3)]
    assert [store.position(job.id) for job in jobs] == [1, 2, 3]
    store.claim("w")
    assert [store.position(job.id) for job in jobs] == [0, 2, 3]
    assert store.num_waiting("ann") == 3 and store.num_waiting("bob") == 0


def test_old_uploads_go_unless_a_waiting_job_needs_them(store: JobStore, clock: Clock) -> None:
    for upload in ("needed", "old"):
        store.add_upload(UploadRow(upload, "ann", "n", f"{upload}.upload", "image/png", {}))
        store.add_file(f"{upload}.png", "ann", upload, "image/png", "n.png")
    store.submit("ann", "needed", "n", REQUEST)
    clock.t += 100
    store.add_upload(UploadRow("new", "ann", "n", "new.upload", "image/png", {}))
    assert store.drop_old_uploads(clock.t - 50) == ["old.png", "old.upload"]
    assert store.find_upload("old") is None
    assert store.find_upload("needed") is not None and store.find_upload("new") is not None


def test_old_steps_are_forgotten_but_not_how_a_job_ended(store: JobStore, clock: Clock) -> None:
    ended, running = submit(store), submit(store)
    for job in (store.claim("w"), store.claim("w")):
        assert job is not None
        store.append(job, "w", "step", {"i": 1})
        if job.id == ended.id:
            store.finish(job, "w", JobState.DONE, result={})
    clock.t += 100
    assert store.drop_old_events(clock.t - 50) == 1
    assert kinds(store, ended) == ["job:queued", "job:running", "saved", "job:done"]
    assert kinds(store, running) == ["job:queued", "job:running", "step"]


def test_reopening_keeps_everything_and_migrates_once(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    first = JobStore(path)
    job = submit(first)
    first.close()
    second = JobStore(path)
    assert second.find(job.id) is not None
    second.close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*), count(DISTINCT name) FROM migrations").fetchone() == (4, 4)
    db.close()


def test_a_running_job_is_told_once_of_other_versions(store: JobStore) -> None:
    job, others = submit(store), [LoraRef("b_2", 0.5)]
    assert store.switch(job.id, "ann", others) and not store.switch(job.id, "bob", others)
    claimed = store.claim("w1")
    assert claimed is not None and claimed.request.loras == tuple(others)  # it was waiting: it begins with them
    assert store.take_switch(claimed, "w1") is None
    assert store.switch(job.id, "ann", [LoraRef("c_3")]) and store.switch(job.id, "ann", [])
    assert store.take_switch(claimed, "w2") is None  # another worker's
    assert store.take_switch(claimed, "w1") == [] and store.take_switch(claimed, "w1") is None
    store.set_loras(claimed, "w1", [{"name": "c_3", "strength": 1.0}])
    found = store.find(job.id)
    assert found is not None and found.request.loras == (LoraRef("c_3"),) and found.request.steps == job.request.steps
    store.switch(job.id, "ann", others)
    store.release("w1")
    again = store.claim("w2")
    # What was asked of a worker that died holds for the next attempt from its beginning.
    assert again is not None and again.request.loras == tuple(others) and store.take_switch(again, "w2") is None
    store.cancel(job.id, "ann")
    assert not store.switch(job.id, "ann", others)
    assert store.finish(again, "w2", JobState.DONE) and not store.switch(job.id, "ann", others)


@pytest.mark.parametrize(
    "content", [b"this is no database, but long enough to be looked at" * 40, b"SQLite format 3\0" * 100]
)
def test_a_damaged_database_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jobs.sqlite"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="move it away to begin with an empty one"):
        JobStore(path)
    assert path.read_bytes() == content


def test_a_full_disk_is_a_sentence_and_the_store_goes_on(store: JobStore) -> None:
    job = submit(store)
    (pages,) = store._db.connection.execute("PRAGMA page_count").fetchone()
    store._db.connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StorageError, match=r"The disk of .* is full"):
        for _ in range(100):
            store.broadcast("engine", {"text": "x" * 5000})
    assert store.find(job.id) is not None
    store._db.connection.execute(f"PRAGMA max_page_count={pages + 1000}")
    store.broadcast("engine", {"state": "ready"})
    assert store.claim("w") is not None
