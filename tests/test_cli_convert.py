"""`realchar convert` as a user runs it: files, metadata, exit codes, and what stdout and stderr carry."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from realchar.cli import build_parser, main
from realchar.cli.convert import load_settings
from realchar.errors import InvalidInput, storage_error
from realchar.results import read_params, save
from tests.lora_files import write


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "猫 cat.png"
    Image.effect_noise((220, 160), 60).convert("RGB").save(path)
    return path


def test_convert_writes_the_stamped_and_the_clean_copy(
    tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new folder" / "out.png"
    code = main(["convert", str(source), "-o", str(out), "--steps", "2", "--seed", "7", "--prompt", "写真"])
    assert code == 0
    stdout, stderr = capfd.readouterr()
    assert stdout == "" and "220×160, size unchanged" in stderr and "seed 7" in stderr and "demo base" in stderr
    clean = out.with_name("out.clean.png")
    with Image.open(out) as a, Image.open(clean) as b:
        assert a.size == b.size == (220, 160)
        assert not np.array_equal(np.asarray(a), np.asarray(b))
    params = read_params(out)
    assert params is not None and params == read_params(clean)
    request = params["request"]
    assert (request["prompt"], request["steps"], request["seed"], request["preset"]) == ("写真", 2, 7, "daily")
    assert params["size"] == [220, 160] and params["base"]["demo"] and params["loras"] == []


def test_no_stamp_writes_only_the_clean_copy_and_json_tells_events(
    tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.webp"
    code = main(["convert", str(source), "-o", str(out), "--steps", "2", "--cfg", "1", "--no-stamp", "--json"])
    assert code == 0 and out.exists() and not out.with_name("out.clean.webp").exists()
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [e["i"] for e in events if e["event"] == "step"] == [1, 2]
    assert events[-1]["event"] == "saved" and events[-1]["files"] == {"clean": "out.webp"}


def test_streamed_weights_give_the_same_picture_and_are_told(
    tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = ["convert", str(source), "--steps", "2", "--seed", "7", "--no-stamp", "--json"]
    plans = []
    for name, options in (("a.png", []), ("b.png", ["--offload", "stream", "--resident-blocks", "3"]), ("c.png", [])):
        if name == "c.png":
            monkeypatch.setenv("REALCHAR_OFFLOAD", "stream")
        assert main([*shared, "-o", str(tmp_path / name), *options]) == 0
        events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        plans.append(next((e["mode"], e["resident"]) for e in events if e["event"] == "plan"))
    assert plans == [("resident", 8), ("stream", 3), ("stream", 8)]  # all, where memory allows
    first, *others = (np.asarray(Image.open(tmp_path / name)) for name in ("a.png", "b.png", "c.png"))
    assert all(np.array_equal(first, other) for other in others)
    params = read_params(tmp_path / "b.png")
    assert params is not None and params["plan"]["mode"] == "stream"
    assert main([*shared, "-o", str(tmp_path / "d.png"), "--resident-blocks", "99"]) == 2
    assert "99 resident blocks" in capfd.readouterr().err


def test_same_seed_same_bytes_of_pixels(tmp_path: Path, source: Path) -> None:
    for name in ("a.png", "b.png"):
        main(["convert", str(source), "-o", str(tmp_path / name), "--steps", "2", "--seed", "7", "--no-stamp"])
    with Image.open(tmp_path / "a.png") as a, Image.open(tmp_path / "b.png") as b:
        assert np.array_equal(np.asarray(a), np.asarray(b))


def test_a_name_that_begins_with_a_dash_is_a_file(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source.rename(tmp_path / "-cat.png")
    assert main(["convert", "-cat.png", "-o", "out.png", "--steps", "1"]) == 0
    assert (tmp_path / "out.png").exists()


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--weights", "nowhere_99"], 2, "not in the weights folder"),
        (["--steps", "0"], 2, "Steps is 0"),
        (["--cfg", "99"], 2, "CFG is 99"),
        (["--base", "nowhere"], 1, "No base at"),
        (["-o", "out.bmp"], 2, "no name for a picture"),
        (["--resident-blocks", "3"], 2, "--resident-blocks 3 means nothing without streaming"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tmp_path: Path,
    source: Path,
    options: list[str],
    code: int,
    sentence: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    argv = ["convert", str(source), "-o", str(tmp_path / "out.png"), *options]
    assert main(argv) == code
    stderr = capfd.readouterr().err
    assert sentence in stderr and "Traceback" not in stderr
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [source.name]


def test_a_refused_picture_is_exit_code_2_and_fast(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "x.png"
    bad.write_bytes(b"hello")
    assert main(["convert", str(bad), "-o", str(tmp_path / "out.png")]) == 2
    assert "Loading" not in capfd.readouterr().err  # refused before the base was touched
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize("out", ["x.png", "../{folder}/x.png", "link.png"])
def test_the_source_is_never_overwritten(tmp_path: Path, source: Path, out: str) -> None:
    source = source.rename(tmp_path / "x.png")
    (tmp_path / "link.png").hardlink_to(source)
    before = source.read_bytes()
    for options in ([], ["--no-stamp"]):
        assert main(["convert", str(source), "-o", str(tmp_path / out.format(folder=tmp_path.name)), *options]) == 2
    assert source.read_bytes() == before


def test_nor_when_it_has_the_name_of_the_clean_copy(tmp_path: Path, source: Path) -> None:
    source = source.rename(tmp_path / "out.clean.png")
    before = source.read_bytes()
    assert main(["convert", str(source), "-o", str(tmp_path / "out.png")]) == 2
    assert source.read_bytes() == before and not (tmp_path / "out.png").exists()


def test_where_one_copy_can_not_be_written_there_is_none(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(image: Image.Image, target: Path, params: object = None) -> None:
        if not target.stem.endswith(".clean"):
            raise storage_error(OSError(errno.ENOSPC, "No space left on device"), repr(target.name))
        save(image, target)

    monkeypatch.setattr("realchar.convert.save", full)
    assert main(["convert", str(source), "-o", str(tmp_path / "out.png"), "--steps", "1"]) == 1
    assert "No space left on device); free some space" in capfd.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [source.name]


@pytest.mark.parametrize(
    ("out", "code", "sentence"),
    [
        ("folder.png", 2, "is a folder"),
        (".", 2, "is no name for a picture"),
        ("x" * 300 + ".png", 1, "could not be written (File name too long); choose another folder or name"),
        ("猫 cat.png/out.png", 1, "could not be written"),
        ("noname", 2, "end it in .png"),
    ],
)
def test_a_target_that_can_not_be_is_told_before_the_base_is_loaded(
    tmp_path: Path, source: Path, out: str, code: int, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.png").mkdir()
    assert main(["convert", str(source), "-o", str(tmp_path / out)]) == code
    stderr = capfd.readouterr().err
    assert sentence in stderr and "Loading" not in stderr and "Traceback" not in stderr


def test_several_loras_at_once_each_with_its_strength(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "versions"
    folder.mkdir()
    for name in ("one_1", "two_2", "a:b_3"):
        write(folder / f"{name}.safetensors", "diffusers")
    monkeypatch.setenv("REALCHAR_WEIGHTS", str(folder))
    argv = ["convert", str(source), "-o", str(tmp_path / "out.png"), "--steps", "1", "--preset", "draft", "--json"]
    assert main([*argv, "--weights", "one_1", "--strength", "0.5", "--add", "two_2:0.25", "--add", "a:b_3"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    used = next(event for event in events if event["event"] == "saved")["params"]["loras"]
    assert [(ref["name"], ref["strength"]) for ref in used] == [("one_1", 0.5), ("two_2", 0.25), ("a:b_3", 1.0)]
    assert main([*argv, "--weights", "none", *["--add", "two_2"] * 9]) == 2
    assert "9 LoRA versions at once are too many" in capsys.readouterr().err


def test_what_is_odd_about_a_version_is_told_before_it_is_used(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "odd_2.safetensors", "kohya, alpha 0")
    (tmp_path / "bad_3.safetensors").write_bytes(b"<html>")
    monkeypatch.setenv("REALCHAR_WEIGHTS", str(tmp_path))
    argv = ["convert", str(source), "-o", str(tmp_path / "out.png"), "--steps", "1", "--preset", "draft"]
    assert main([*argv, "--weights", "bad_3"]) == 2
    assert "is a web page" in capsys.readouterr().err and not (tmp_path / "out.png").exists()
    assert main(argv) == 0
    assert "has an alpha of 0 in 5 modules" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--strength", "nan"], ["--seed", "-2"], ["--prompt", "a\udcffb"]])
def test_values_that_can_not_be_are_refused(tmp_path: Path, source: Path, options: list[str]) -> None:
    (tmp_path / "weights" / "look_9.safetensors").write_bytes(b"x")
    argv = ["convert", str(source), "-o", str(tmp_path / "out.png"), "--weights", "look_9", *options]
    assert main(argv) == 2


@pytest.mark.slow
def test_whoever_stops_reading_gets_no_traceback(tmp_path: Path, source: Path) -> None:
    command = [sys.executable, "-m", "realchar", "convert", str(source), "-o", str(tmp_path / "o.png"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [([], ("stream", 3)), (["--offload", "resident"], ("resident", 3)), (["--resident-blocks", "5"], ("stream", 5))],
)
def test_options_win_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, options: list[str], expected: tuple[str, int]
) -> None:
    monkeypatch.setenv("REALCHAR_OFFLOAD", "stream")
    monkeypatch.setenv("REALCHAR_RESIDENT_BLOCKS", "3")
    settings = load_settings(build_parser().parse_args(["convert", "a.png", "-o", "b.png", *options]))
    assert (settings.offload, settings.resident_blocks) == expected
    monkeypatch.setenv("REALCHAR_OFFLOAD", "Stream")
    with pytest.raises(
        InvalidInput,
        match=r"REALCHAR_OFFLOAD is 'Stream', but 'auto', 'resident', 'stream', 'model' or 'sequential' is needed",
    ):
        load_settings(build_parser().parse_args(["convert", "a.png", "-o", "b.png"]))
