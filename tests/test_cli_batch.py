"""`realchar batch` as a user runs it: which pictures, under which names, what fails alone and what ends it.

One test converts with the demo base; the others put a scripted engine, which returns the picture as it is, below the
real conversion.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from realchar.cli import batch, main
from realchar.engine.together import Ask, Together, Work
from realchar.errors import ModelError, ResultError, storage_error
from realchar.images.sniff import OPENERS
from realchar.results import read_params, save
from realchar.schema import Decoded, EditRequest, Step

Box = tuple[int, int, int, int]


class Echo:
    """An engine that returns what it got; `fault` is called before each picture, counted from 1."""

    blocks, device = None, torch.device("cpu")

    def __init__(self) -> None:
        self.loads = self.runs = 0
        self.at_a_time = self.steps = 1
        self.fault: Callable[[int], None] = lambda run: None

    def load(self, base: object, settings: object) -> Echo:
        self.loads += 1
        return self

    def work(
        self, request: EditRequest, picture: Image.Image, box: Box, loras: list[Path], _switch: object
    ) -> Work[Decoded]:
        self.runs += 1
        run = self.runs
        for _ in range(self.steps):
            yield Step(1, 1, 0.0, 0.0)
        if self.at_a_time > 1:
            yield Ask([])
        self.fault(run)
        return Decoded(picture.crop(box), {"base": {"title": "Echo"}})

    def velocities(self, branches: list[Any], wanted: Any) -> Generator[None, None, list[Any]]:
        yield
        return []

    @property
    def family(self) -> Any:
        return self

    @property
    def memory(self) -> Any:
        return self

    def width(self, request: EditRequest) -> int:
        return self.at_a_time

    def together(self, more: Any, width: int = 1) -> Together[Any]:
        return Together(self, more, width)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Echo:
    echo = Echo()
    monkeypatch.setattr(batch, "load_engine", echo.load)
    return echo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pictures whose order by characters is not the order by number."""
    folder = tmp_path / "图 in"
    folder.mkdir()
    for name in ("10.png", "9.png", "猫.webp"):
        draw(folder / name)
    return folder


def draw(path: Path) -> bytes:
    Image.effect_noise((48, 40), 60).convert("RGB").save(path)
    return path.read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run(folder: Path, out: Path, *options: str) -> int:
    return main(["batch", str(folder), "-o", str(out), "--weights", "none", *options])


def test_the_demo_base_converts_a_folder_like_convert(
    tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "1", "--cfg", "1", "--seed", "5", "--no-stamp"]
    assert run(folder, tmp_path / "out", *options) == 0
    assert names(tmp_path / "out") == ["10.png", "9.png", "猫.png"]
    stdout, stderr = capfd.readouterr()
    assert stdout == "" and "3 converted, 0 failed in" in stderr and "demo base" in stderr
    assert [line for line in stderr.splitlines() if line.startswith("[")] == [
        "[1/3] 9.png",
        "[2/3] 10.png",
        "[3/3] 猫.webp",
    ]
    main(["convert", str(folder / "10.png"), "-o", str(tmp_path / "one.png"), *options])
    with Image.open(tmp_path / "out" / "10.png") as a, Image.open(tmp_path / "one.png") as b:
        assert np.array_equal(np.asarray(a), np.asarray(b))


def test_each_picture_gets_its_own_seed_and_both_copies_and_the_engine_is_loaded_once(
    tmp_path: Path, folder: Path, engine: Echo, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, tmp_path / "a" / "b") == 0
    stems = ("9", "10", "猫")
    found = [read_params(tmp_path / "a" / "b" / f"{stem}{kind}.png") for stem in stems for kind in ("", ".clean")]
    seeds = [params["request"]["seed"] for params in found if params]
    assert len(seeds) == 6 and len(set(seeds)) == 3 and engine.loads == 1
    assert f"→ 10.png, 10.clean.png, seed {seeds[2]}" in capfd.readouterr().err


def test_a_given_seed_holds_for_all_and_a_second_run_overwrites(tmp_path: Path, folder: Path, engine: Echo) -> None:
    for seed in (3, 4):
        assert run(folder, tmp_path, "--no-stamp", "--seed", str(seed)) == 0
        for name in ("9.png", "10.png", "猫.png"):
            params = read_params(tmp_path / name)
            assert params is not None and params["request"]["seed"] == seed


def test_several_at_a_time_are_all_made_and_told_by_name(
    tmp_path: Path, folder: Path, engine: Echo, capfd: pytest.CaptureFixture[str]
) -> None:
    engine.at_a_time = 2

    def fault(run: int) -> None:
        if run == 2:
            raise ResultError("flat", "The result has a single colour.")

    engine.fault = fault
    out = tmp_path / "out"
    assert main(["batch", str(folder), "-o", str(out), "--no-stamp"]) == 1
    assert sorted(path.name for path in out.iterdir()) == ["9.png", "猫.png"]
    lines = capfd.readouterr().err.splitlines()
    begun = [line for line in lines if line.startswith("[")]
    assert begun == ["[1/3] 9.png", "[2/3] 10.png", "[3/3] 猫.webp"]
    assert lines.index(begun[1]) < next(i for i, line in enumerate(lines) if "→ 9.png: 9.png" in line)
    assert any("10.png failed: The result has a single colour." in line for line in lines)
    assert "2 converted, 1 failed" in lines[-1]


@pytest.mark.parametrize(
    ("options", "strategy"), [(["--strategy", "batch"], "batch"), (["--preset", "batch"], "batch"), ([], "auto")]
)
def test_the_strategy_reaches_the_engine(
    tmp_path: Path, folder: Path, engine: Echo, monkeypatch: pytest.MonkeyPatch, options: list[str], strategy: str
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(batch, "load_engine", lambda base, settings: seen.append(settings.strategy) or engine)
    assert main(["batch", str(folder), "-o", str(tmp_path / "out"), "--no-stamp", *options]) == 0
    assert seen == [strategy]


def test_ctrl_c_tells_every_picture_under_way(
    tmp_path: Path, folder: Path, engine: Echo, capfd: pytest.CaptureFixture[str]
) -> None:
    engine.at_a_time = 3

    def fault(run: int) -> None:
        raise KeyboardInterrupt

    engine.fault = fault
    assert main(["batch", str(folder), "-o", str(tmp_path / "out"), "--no-stamp", "--json"]) == 1
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["picture"] for line in lines if line["event"] == "cancelled"] == ["9.png", "10.png", "猫.webp"]


def test_what_is_no_picture_by_name_is_left_out(tmp_path: Path, folder: Path, engine: Echo) -> None:
    draw(folder / ".hidden.png")
    (folder / "notes.txt").write_text("x", encoding="utf-8")
    (folder / "folder.png").mkdir()
    draw(folder / "folder.png" / "deep.png")
    draw(tmp_path / "linked.png")
    (folder / "LINK.PNG").symlink_to(tmp_path / "linked.png")
    assert run(folder, tmp_path / "out", "--no-stamp") == 0
    assert names(tmp_path / "out") == ["10.png", "9.png", "LINK.png", "猫.png"]


def test_every_format_that_is_read_is_found_by_its_names() -> None:
    Image.init()
    known = [suffix for suffix, kind in Image.registered_extensions().items() if kind in {*OPENERS, "MPO", "HEIF"}]
    assert {".png", ".jpg", ".jpeg", ".webp", ".tiff", ".avif"} <= set(known)
    assert [suffix for suffix in known if not batch.PICTURE_NAME.search(f"x{suffix.upper()}")] == []
    assert not batch.PICTURE_NAME.search("x.svg") and not batch.PICTURE_NAME.search(".png")


def test_one_bad_picture_is_told_and_the_rest_is_converted(
    tmp_path: Path, folder: Path, engine: Echo, capfd: pytest.CaptureFixture[str]
) -> None:
    def flat(run: int) -> None:
        if run == 2:
            raise ResultError("flat", "The result is a single colour; try other settings.")

    engine.fault = flat
    (folder / "1 bad.jpg").write_bytes(b"hello")
    (folder / "2 gone.png").symlink_to(tmp_path / "nowhere")
    (folder / "3 thin.png").write_bytes(b"")
    Image.new("RGB", (1000, 2)).save(folder / "3 thin.png")
    assert run(folder, tmp_path / "out", "--no-stamp") == 1
    assert names(tmp_path / "out") == ["9.png", "猫.png"]
    stderr = capfd.readouterr().err
    assert "1 bad.jpg failed: This file is not a picture." in stderr
    assert "2 gone.png failed: '2 gone.png' can't be read" in stderr
    assert "3 thin.png failed: The picture is too narrow" in stderr
    assert "10.png failed: The result is a single colour" in stderr
    assert "2 converted, 4 failed in" in stderr and "Traceback" not in stderr


def test_where_no_picture_is_usable_the_base_is_not_loaded(tmp_path: Path, folder: Path, engine: Echo) -> None:
    for path in folder.iterdir():
        path.write_bytes(b"hello")
    assert run(folder, tmp_path / "out") == 1
    assert engine.loads == 0 and names(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("source", "out", "options", "sentence"),
    [
        ("nowhere", "out", [], "can't be read (No such file or directory)"),
        ("x" * 300, "out", [], "can't be read (File name too long)"),
        ("图 in/9.png", "out", [], "for one picture use `realchar convert`"),
        ("empty", "out", [], "No pictures directly in"),
        ("图 in", "图 in", [], "is the folder of the pictures itself"),
        ("图 in", "empty/../图 in", [], "is the folder of the pictures itself"),
        ("图 in", "图 in/9.png", [], "could not be written (File exists); choose another folder"),
        ("图 in", "out", ["--steps", "0"], "Steps is 0"),
        ("图 in", "out", ["--weights", "nowhere_9"], "not in the weights folder"),
    ],
)
def test_what_is_refused_as_a_whole(
    tmp_path: Path,
    folder: Path,
    engine: Echo,
    source: str,
    out: str,
    options: list[str],
    sentence: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / source, tmp_path / out, *options) == 2
    stderr = capfd.readouterr().err
    assert sentence in stderr and stderr.count("\n") == 1
    assert names(folder) == ["10.png", "9.png", "猫.webp"] and engine.loads == 0


@pytest.mark.parametrize(
    ("sources", "stamp", "results"),
    [
        (["a.png", "b.jpg"], True, ["a.png", "b.png"]),
        (["a.jpg", "a.png", "b.png"], True, ["a.jpg.png", "a.png.png", "b.png"]),
        (["A.png", "a.png"], False, ["A.png.png", "a.png-2.png"]),  # the same file where capitals don't count
        (["a.clean.png", "a.png"], True, ["a.clean.png", "a.png.png"]),  # the clean copy of `a` has that name
        (["a.clean.png", "a.png"], False, ["a.clean.png", "a.png"]),
        (["a.jpg", "a.jpg.png", "a.png"], False, ["a.jpg.png", "a.jpg.png.png", "a.png.png"]),
        (["é.png", "e\u0301.png"], False, ["é.png.png", "e\u0301.png-2.png"]),  # one name on macOS
    ],
)
def test_no_two_pictures_share_a_result(sources: list[str], stamp: bool, results: list[str]) -> None:
    tasks = batch.plan_tasks([Path(name) for name in sources], Path("out"), stamp)
    main_role = "stamped" if stamp else "clean"
    assert [task.targets[main_role].name for task in tasks] == results
    written = [path.name.casefold() for task in tasks for path in task.targets.values()]
    assert len(set(written)) == len(written)


def test_a_result_never_replaces_a_picture_of_the_run(
    tmp_path: Path, folder: Path, engine: Echo, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    before = draw(out / "9.png")
    (folder / "b.png").symlink_to(out / "9.png")
    assert run(folder, out, "--no-stamp") == 1
    assert (out / "9.png").read_bytes() == before
    assert "9.png failed: The result '9.png' would overwrite a picture of this run" in capfd.readouterr().err
    assert names(out) == ["10.png", "9.png", "b.png", "猫.png"]


def test_a_full_disk_ends_it(
    tmp_path: Path, folder: Path, engine: Echo, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(image: Image.Image, target: Path, params: dict[str, Any] | None = None) -> None:
        if target.name == "10.png":
            raise storage_error(OSError(errno.ENOSPC, "No space left on device"), repr(target.name))
        save(image, target, params)

    monkeypatch.setattr("realchar.convert.save", full)
    assert run(folder, tmp_path / "out") == 1
    assert names(tmp_path / "out") == ["9.clean.png", "9.png"]
    stderr = capfd.readouterr().err
    assert "'10.png' could not be written (No space left on device); free some space" in stderr
    assert "1 converted, 1 failed, 1 left in" in stderr


def test_a_base_that_does_not_load_ends_it_at_once(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(base: object, settings: object) -> None:
        raise ModelError("base", "The base is damaged; copy it again.")

    monkeypatch.setattr(batch, "load_engine", broken)
    assert run(folder, tmp_path / "out") == 1
    assert "0 converted, 1 failed, 2 left in" in capfd.readouterr().err


def test_ctrl_c_keeps_what_was_done(
    tmp_path: Path, folder: Path, engine: Echo, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(run: int) -> None:
        if run == 2:
            raise KeyboardInterrupt

    engine.fault = interrupt
    assert run(folder, tmp_path / "out") == 1
    assert names(tmp_path / "out") == ["9.clean.png", "9.png"]
    stderr = capfd.readouterr().err
    assert "cancelled at 10.png" in stderr and "1 converted, 0 failed, 2 left in" in stderr


def test_json_tells_every_event_with_its_picture(
    tmp_path: Path, folder: Path, engine: Echo, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "1.png").write_bytes(b"hello")
    assert run(folder, tmp_path / "out", "--json", "--no-stamp") == 1
    stdout, stderr = capfd.readouterr()
    *events, summary = [json.loads(line) for line in stdout.splitlines()]
    assert stderr == ""
    begun = [(e["picture"], e["i"], e["n"]) for e in events if e["event"] == "picture"]
    assert begun == [("1.png", 1, 4), ("9.png", 2, 4), ("10.png", 3, 4), ("猫.webp", 4, 4)]
    assert [(e["picture"], e["error"]["code"]) for e in events if e["event"] == "failed"] == [("1.png", "not_picture")]
    saved = [(e["picture"], e["files"]) for e in events if e["event"] == "saved"]
    assert saved == [(n, {"clean": f"{Path(n).stem}.png"}) for n in ("9.png", "10.png", "猫.webp")]
    assert [e["source"] for e in events if e["event"] == "prepared"] == [[48, 40]] * 3
    assert (summary["event"], summary["converted"], summary["failed"], summary["left"]) == ("summary", 3, 1, 0)


@pytest.mark.parametrize("arguments", [["", "-o", "out"], [".", "-o", ""]])
def test_an_empty_path_is_not_the_current_folder(
    arguments: list[str], engine: Echo, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["batch", *arguments])
    assert caught.value.code == 2 and "the path is empty" in capsys.readouterr().err and engine.loads == 0


def test_a_name_of_two_lines_is_told_in_one(tmp_path: Path, engine: Echo, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    try:
        draw(folder / "new\nline.png")
    except OSError:
        pytest.skip("this file system has no such names")
    assert main(["batch", str(folder), "-o", str(tmp_path / "out")]) == 0
    assert "new\nline" not in capsys.readouterr().err
