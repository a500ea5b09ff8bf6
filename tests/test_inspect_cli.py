"""`realchar inspect`: exit codes, the JSON report, and the saved picture."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from PIL import Image

from realchar.cli import inspect
from realchar.errors import InvalidInput


def call(*argv: str | Path) -> int:
    parser = argparse.ArgumentParser()
    inspect.register(parser.add_subparsers(required=True))
    args = parser.parse_args(["inspect", *map(str, argv)])
    code = args.run(args)
    assert isinstance(code, int)
    return code


@pytest.fixture
def drawing(tmp_path: Path) -> Path:
    path = tmp_path / "写真 キャラ 1.png"
    Image.new("RGBA", (1200, 1600), (200, 30, 90, 128)).save(path)
    return path


def test_json_alone_on_stdout(drawing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(drawing, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["action"] == "accept" and report["prepared"] == {"mode": "RGB", "size": [768, 1024]}
    assert [note["code"] for note in report["notes"]] == ["alpha", "resize"]


def test_human_lines(drawing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(drawing, "--long-edge", "512") == 0
    out = capsys.readouterr().out
    assert "写真 キャラ 1.png: accepted" in out and "1200×1600 (PNG, RGBA) → 384×512" in out
    assert "Transparent areas were put on white" in out


def test_native_size(drawing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(drawing, "--native", "--json") == 0
    assert json.loads(capsys.readouterr().out)["prepared"]["size"] == [887, 1182]


def test_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.jpg"
    page.write_text("<html>", encoding="utf-8")
    assert call(page, "--json", "--save", tmp_path / "out.png") == 2
    report = json.loads(capsys.readouterr().out)
    assert report["action"] == "reject" and report["source"] is None and report["reason"].endswith(".")
    assert not (tmp_path / "out.png").exists()
    assert call(page) == 2
    assert "page.jpg: refused" in capsys.readouterr().out
    thin = tmp_path / "thin.png"
    Image.new("RGB", (900, 3)).save(thin)
    assert call(thin, "--json") == 2
    assert json.loads(capsys.readouterr().out)["source"] == {"format": "PNG", "mode": "RGB", "size": [900, 3]}
    assert call(tmp_path, "--json") == 2


def test_save_writes_the_picture_before_padding(tmp_path: Path) -> None:
    source = tmp_path / "a.png"
    Image.new("RGB", (300, 200), "teal").save(source)
    assert call(source, "--save", tmp_path / "out.PNG") == 0
    with Image.open(tmp_path / "out.PNG") as saved:
        assert saved.size == (300, 200) and saved.mode == "RGB" and saved.format == "PNG"


def test_save_to_a_wrong_place(drawing: Path, tmp_path: Path) -> None:
    before = drawing.read_bytes()
    for target in (drawing, tmp_path / "out.jpg", tmp_path / "missing" / "out.png"):
        with pytest.raises(InvalidInput) as caught:
            call(drawing, "--save", target)
        assert caught.value.code == "save" and caught.value.exit_code == 2
    assert drawing.read_bytes() == before


def test_wrong_size(drawing: Path) -> None:
    with pytest.raises(InvalidInput, match="long_edge"):
        call(drawing, "--long-edge", "0")
