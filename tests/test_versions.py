"""The listing of LoRA versions: names, order, links, what fits, what versions are for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from realchar.catalog import load_base
from realchar.cli import main
from realchar.errors import NotFound
from realchar.lora import target_in
from realchar.versions import (
    Recommendation,
    get_weights,
    newest_weights,
    picture_beside,
    read_recommendations,
    recommendation_for,
    report_of,
    scan_weights,
    steps_of,
    trailing_number,
)
from tests.lora_files import write
from tests.tiny import DEMO, copy_base

TARGET = target_in(DEMO / "transformer")


@pytest.mark.parametrize(
    ("stem", "number"),
    [
        ("look_v2511_0008500", 8500),
        ("look_2511_20", 20),
        ("v3056", 3056),
        ("plain", None),
        ("写真_0100_final", 100),
        ("look_8500 (1)", 8500),
        ("look_٣", 3),
        ("9" * 40, int("9" * 18)),
    ],
)
def test_the_version_is_the_trailing_number(stem: str, number: int | None) -> None:
    assert trailing_number(stem) == number


def test_versions_are_listed_newest_first_and_bases_are_passed_over(tmp_path: Path) -> None:
    for name in ("a_0500", "a_10000", "a_2000", "sub/写真 x_9000", "plain", ".hidden_99999", ".git/a_7"):
        file = tmp_path / f"{name}.safetensors"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"12345678")
    (tmp_path / "b_7.safetensors.part").write_bytes(b"")
    (tmp_path / "UPPER_3.SAFETENSORS").write_bytes(b"12345678")
    (tmp_path / "folder_8.safetensors").mkdir()
    copy_base(tmp_path / "demo")
    names = [w.name for w in scan_weights(tmp_path)]
    assert names == ["a_10000", "sub/写真 x_9000", "a_2000", "a_0500", "UPPER_3", "plain"]
    assert scan_weights(tmp_path / "missing") == []


def test_no_two_versions_share_a_name(tmp_path: Path) -> None:
    for name in (b"x.safetensors", b"x.SAFETENSORS", b"\xff.safetensors", b"\xfe.safetensors"):
        (tmp_path / os.fsdecode(name)).write_bytes(b"12345678")
    listing = scan_weights(tmp_path)
    assert {info.name for info in listing} == {"x.safetensors", "x.SAFETENSORS", "\\xff", "\\xfe"}
    assert [get_weights(tmp_path, info.name).path for info in listing] == [info.path for info in listing]
    json.dumps([info.name for info in listing]).encode()


def test_links_of_the_folders_owner_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "own"
    outside.mkdir()
    folder.mkdir()
    (outside / "far_7.safetensors").write_bytes(b"12345678")
    (folder / "near_8.safetensors").symlink_to(outside / "far_7.safetensors")
    (folder / "gone_9.safetensors").symlink_to(outside / "nothing")
    (folder / "more").symlink_to(outside, target_is_directory=True)
    (folder / "circle").symlink_to(folder, target_is_directory=True)
    assert [info.name for info in scan_weights(folder)] == ["near_8", "more/far_7"]


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "/etc/passwd",
        "..\\secret",
        "sub/../../secret",
        "",
        ".",
        "a_0500/..",
        "a_0500\0",
        "\ud800",
        "x" * 10**6,
    ],
)
def test_names_are_only_looked_up(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.safetensors").write_bytes(b"x")
    weights = tmp_path / "weights2"
    weights.mkdir()
    (weights / "a_0500.safetensors").write_bytes(b"x")
    with pytest.raises(NotFound, match="not in the weights folder") as caught:
        get_weights(weights, name)
    assert len(caught.value.message) < 400
    json.dumps(caught.value.to_json()).encode()


def test_a_version_is_found_by_key_file_name_or_unique_stem(tmp_path: Path) -> None:
    for name in ("one/look_5", "two/look_5", "two/look_6"):
        file = tmp_path / f"{name}.safetensors"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x")
    assert get_weights(tmp_path, "two/look_5.safetensors").path == tmp_path / "two" / "look_5.safetensors"
    assert get_weights(tmp_path, "look_6").name == "two/look_6"
    with pytest.raises(NotFound):
        get_weights(tmp_path, "look_5")  # two of them: never guessed


def test_the_newest_that_fits_the_base_is_chosen(tmp_path: Path) -> None:
    base = load_base(DEMO)
    for name in ("demo_0500", "demo_0100"):
        write(tmp_path / f"{name}.safetensors", "diffusers")
    save_file({"m.lora_A.weight": torch.zeros(4, 192)}, tmp_path / "other_9000.safetensors")
    module = "transformer_blocks.0.attn.to_q"
    save_file({f"{module}.lora_A.weight": torch.zeros(4, base.width)}, tmp_path / "lone_9500.safetensors")
    (tmp_path / "broken_99999.safetensors").write_bytes(b"\xff" * 40)
    newest = newest_weights(tmp_path, base)
    assert newest is not None and newest.name == "demo_0500"
    assert newest_weights(tmp_path / "missing", base) is None


def test_a_report_is_made_again_only_when_a_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "x_5.safetensors"
    write(file, "diffusers")
    first = report_of(scan_weights(tmp_path)[0], TARGET)
    assert report_of(scan_weights(tmp_path)[0], TARGET) is first
    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 8, "r": 4}', encoding="utf-8")
    second = report_of(scan_weights(tmp_path)[0], TARGET)
    assert {piece.scale for piece in first.pieces} == {1.0} and {piece.scale for piece in second.pieces} == {2.0}
    write(file, "mixed ranks")
    assert report_of(scan_weights(tmp_path)[0], TARGET).format != second.format


def test_steps_come_from_the_name_or_the_metadata(tmp_path: Path) -> None:
    module = "transformer_blocks.0.attn.to_q"
    tensors = {f"{module}.lora_{side}.weight": torch.ones(shape) for side, shape in (("A", (4, 192)), ("B", (192, 4)))}
    told = {
        "plain": {"ss_steps": "1200"},
        "other": {"training_info": '{"step": 900}'},
        "odd": {"step": "soon"},
        "x_5": None,
    }
    for name, metadata in told.items():
        save_file(tensors, tmp_path / f"{name}.safetensors", {**(metadata or {}), "ss_tag_frequency": "secret" * 1000})
    infos = {info.name: info for info in scan_weights(tmp_path)}
    steps = {name: steps_of(info, report_of(info, TARGET)) for name, info in infos.items()}
    assert steps == {"plain": 1200, "other": 900, "odd": None, "x_5": 5}
    assert not any("secret" in str(report_of(info, TARGET).metadata) for info in infos.values())
    assert picture_beside(infos["x_5"]) is None
    (tmp_path / "x_5.png").write_bytes(b"")
    assert picture_beside(infos["x_5"]) == tmp_path / "x_5.png"


def test_recommendations_are_read_from_the_text_file(tmp_path: Path) -> None:
    assert read_recommendations(tmp_path) == []
    lines = "# steps  what for\n2500-2515 natural look\n2516 – 2528\tmore detail\n7  only this\nnonsense\n2529+ clean input\n"
    (tmp_path / "recommendations.txt").write_text(lines, encoding="utf-8")
    table = read_recommendations(tmp_path)
    assert table[0] == Recommendation(2500, 2515, "natural look") and len(table) == 4
    found = {
        version: recommendation_for(version, table) for version in (None, 7, 8, 2499, 2500, 2515, 2516, 2529, 10**9)
    }
    assert [found[v] for v in (None, 8, 2499)] == ["", "", ""]
    assert (found[7], found[2500], found[2515], found[2516]) == (
        "only this",
        "natural look",
        "natural look",
        "more detail",
    )
    assert found[2529] == found[10**9] == "clean input"


def test_the_shipped_recommendations_cover_the_real_versions() -> None:
    table = read_recommendations(DEMO.parent)
    assert "natural" in recommendation_for(2507, table) and "detail" in recommendation_for(2520, table)
    assert "clean" in recommendation_for(3056, table) and "demo" in recommendation_for(83011, table)


# ---- the command line


def test_the_list_tells_what_each_file_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "good_2510.safetensors", "kohya")
    write(tmp_path / "odd_2520.safetensors", "kohya, alpha 0")
    (tmp_path / "bad_9.safetensors").write_bytes(b"<html>")
    (tmp_path / "old.ckpt").write_bytes(b"x")
    (tmp_path / "recommendations.txt").write_text("2500-2515 natural look", encoding="utf-8")
    assert main(["weights", "list", "--folder", str(tmp_path)]) == 0
    odd, good, bad, old = capsys.readouterr().out.splitlines()
    assert odd.startswith("⚠ odd_2520") and "newest" in odd and "alpha of 0" in odd
    assert good.startswith("✔ good_2510") and "5/5 modules" in good and "rank 4" in good and "natural look" in good
    assert bad.startswith("✕ bad_9") and "web page" in bad
    assert old.startswith("✕ old.ckpt") and "never opened" in old
    assert main(["weights", "list", "--folder", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["action"] for row in rows] == ["warn", "accept", "reject"] and rows[1][
        "recommendation"
    ] == "natural look"
    assert main(["weights", "list", "--folder", str(tmp_path / "none")]) == 0
    assert "No LoRA versions" in capsys.readouterr().out


def test_a_file_is_checked_by_path_or_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "good_2510.safetensors", "LoHa")
    for file in (str(tmp_path / "good_2510.safetensors"), "good_2510"):
        assert main(["weights", "check", file, "--folder", str(tmp_path)]) == 0
        text = capsys.readouterr().out
        assert "5 of 5, rank 4, scale 0.5" in text and "modulation" in text and "sha256" in text
    assert main(["weights", "check", "nothing", "--folder", str(tmp_path)]) == 2
    assert "not in the weights folder" in capsys.readouterr().err
    assert main(["weights", "check", str(tmp_path)]) == 2
    assert "is no file" in capsys.readouterr().err
    for nothing in (str(tmp_path), "nothing"):
        assert main(["weights", "check", nothing, "--json", "--folder", str(tmp_path)]) == 2
        assert json.loads(capsys.readouterr().out)["action"] == "reject"
    with pytest.raises(SystemExit):
        main(["weights", "check", "x", "--width", "0"])
    assert "no number from 1" in capsys.readouterr().err


def test_another_width_is_another_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "good_2510.safetensors", "diffusers")
    file = str(tmp_path / "good_2510.safetensors")
    assert main(["weights", "check", file, "--json", "--width", "64"]) == 2
    assert "does not fit this base" in json.loads(capsys.readouterr().out)["reason"]
    assert main(["weights", "check", file, "--json", "--blocks", "3"]) == 1
    assert json.loads(capsys.readouterr().out)["missed"] == ["transformer_blocks.3.img_mod.1"]
