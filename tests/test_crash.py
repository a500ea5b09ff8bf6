"""What survives a kill -9: of the worker in the middle of a job, and of the whole app with jobs waiting."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from realchar.results import read_params
from tests.app import ROOT, App, running

SAMPLE = ROOT / "ui" / "samples" / "pink_hair.webp"

pytestmark = pytest.mark.slow


def steps_of(data: Path, job: str) -> list[tuple[int, int]]:
    """Return (attempt, step) of every step that was told."""
    db = sqlite3.connect(data / "jobs.sqlite")
    rows = db.execute(
        "SELECT attempt, json_extract(payload, '$.i') FROM events WHERE job=? AND kind='step' ORDER BY id", (job,)
    ).fetchall()
    db.close()
    return rows


def wait_for_step(app: App, job: str, step: int) -> None:
    deadline = time.monotonic() + 90
    while (1, step) not in steps_of(app.data, job):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_result(app: App, job: str) -> None:
    """The result is whole: the picture loads to its end and carries its parameters."""
    saved = app.job(job)["result"]
    for role, name in saved["files"].items():
        file = app.data / "files" / name
        with Image.open(file) as image:
            image.load()
            assert image.size == (256, 256)
        if role != "before":
            assert read_params(file) is not None
        assert app.client.get(f"/api/media/{name}").content == file.read_bytes()


def test_a_killed_worker_costs_nothing_but_time(tmp_path: Path) -> None:
    with running(tmp_path / "data") as app:
        upload = app.upload(SAMPLE)
        first, second = (app.submit(upload, steps=24, seed=seed) for seed in (1, 2))
        wait_for_step(app, first, 3)
        (worker,) = app.workers()
        worker.kill()
        done = app.wait(first, "done", "failed", "interrupted", "cancelled")
        assert done["state"] == "done" and done["attempt"] == 2
        assert app.wait(second, "done", "failed")["state"] == "done"
        for job in (first, second):
            check_result(app, job)
        attempts = steps_of(app.data, first)
        assert [step for attempt, step in attempts if attempt == 2] == list(range(1, 25))
        files = {p.name for p in (app.data / "files").iterdir()}
        known = {name for job in (first, second) for name in app.job(job)["result"]["files"].values()}
        assert len(files - known) == 2  # the upload and its prepared picture; nothing half-written is left


def test_a_worker_that_dies_twice_on_a_job_interrupts_it_alone(tmp_path: Path) -> None:
    with running(tmp_path / "data") as app:
        upload = app.upload(SAMPLE)
        bad, good = (app.submit(upload, steps=steps, seed=1) for steps in (100, 4))
        for _ in range(2):
            app.wait(bad, "running")
            (worker,) = app.workers()
            worker.kill()
            app.wait(bad, "queued", "interrupted")
        assert app.job(bad)["state"] == "interrupted" and app.job(bad)["error"]["code"] == "twice"
        assert app.wait(good, "done", "failed")["state"] == "done"


def test_a_killed_app_ends_all_its_jobs_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path / "data") as app:
        upload = app.upload(SAMPLE)
        jobs = [app.submit(upload, steps=16, seed=seed) for seed in range(3)]
        wait_for_step(app, jobs[0], 3)
        app.kill()
        app.start()
        for job in jobs:
            assert app.wait(job, "done", "failed", "interrupted")["state"] == "done"
            check_result(app, job)
        assert [app.job(job)["attempt"] for job in jobs] == [2, 1, 1]


def test_an_orderly_stop_in_the_middle_is_no_attempt(tmp_path: Path) -> None:
    with running(tmp_path / "data") as app:
        job = app.submit(app.upload(SAMPLE), steps=16)
        wait_for_step(app, job, 2)
        began = time.monotonic()
        app.process.terminate()
        assert app.process.wait(timeout=10) == 0
        assert time.monotonic() - began < 5
        app.start()
        assert app.wait(job, "done", "failed")["attempt"] == 1


def test_cancel_takes_effect_within_a_second(tmp_path: Path) -> None:
    with running(tmp_path / "data") as app:
        job = app.submit(app.upload(SAMPLE), steps=100)
        wait_for_step(app, job, 2)
        began = time.monotonic()
        app.client.post(f"/api/jobs/{job}/cancel")
        app.wait(job, "cancelled")
        assert time.monotonic() - began < 1


def test_a_second_app_on_the_same_data_is_refused_politely(tmp_path: Path) -> None:
    with running(tmp_path / "data") as app:
        second = subprocess.run(
            [sys.executable, "-m", "realchar", "ui", "--port", "0", "--data", str(app.data)],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            env=os.environ,
        )
        assert second.returncode == 1
        assert "Another copy of the app uses the data folder" in second.stderr and "Traceback" not in second.stderr
        assert app.client.get("/api/stats").status_code == 200


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB; making one needs the rights of root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can't be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the space that is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    return ballast


def test_a_full_disk_loses_nothing_and_the_queue_goes_on_by_itself(small_disk: Path) -> None:
    with running(small_disk / "data") as app:
        upload = app.upload(SAMPLE)
        first = app.submit(upload, steps=40)
        second = app.submit(upload, steps=3)
        wait_for_step(app, first, 3)
        ballast = fill(small_disk)
        deadline = time.monotonic() + 60
        while (answer := app.client.post("/api/jobs", json={"upload": upload})).is_success:
            assert time.monotonic() < deadline
            time.sleep(0.2)  # pages that the database still had are used up first
        assert answer.status_code == 507 and answer.json()["code"] == "disk" and "free some space" in answer.text
        time.sleep(3)
        ballast.unlink()
        ended = app.wait(first, "done", "failed", "interrupted")
        assert ended["state"] in ("done", "failed")
        if ended["state"] == "failed":
            assert ended["error"]["code"] == "disk"
        assert app.wait(second, "done", "failed", "interrupted")["state"] == "done"
        assert app.wait(app.submit(upload, steps=3), "done", "failed")["state"] == "done"
    assert "Traceback" not in app.log.read_text(encoding="utf-8")
