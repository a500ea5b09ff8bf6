"""Bases and LoRA versions as they lie on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from realchar.catalog import get_weights, load_base, newest_weights, scan_weights, trailing_number
from realchar.errors import ModelError, NotFound
from tests.tiny import DEMO, copy_base


def test_the_embedded_base_says_what_it_is() -> None:
    base = load_base(DEMO)
    assert base.demo and base.notice and base.long_edge == base.work_edge == 352 and base.native_area == 352 * 352
    assert base.weight_bytes == sum(f.stat().st_size for f in DEMO.rglob("*.safetensors"))


def test_the_embedded_base_is_small_and_safetensors_only() -> None:
    files = [f for f in DEMO.rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) < 48_000_000
    assert {f.suffix for f in files} <= {".json", ".safetensors", ".jinja", ".txt"}


def test_a_real_folder_without_our_file_has_the_models_limits(tmp_path: Path) -> None:
    folder = copy_base(tmp_path / "Qwen-Image-Edit-2511")
    (folder / "realchar.json").unlink()
    base = load_base(folder)
    assert (base.title, base.demo, base.notice) == ("Qwen-Image-Edit-2511", False, "")
    assert (base.long_edge, base.native_area) == (1024, 1024 * 1024)


def test_other_weights_are_another_fingerprint(tmp_path: Path) -> None:
    folder = copy_base(tmp_path / "base")
    before = load_base(folder).fingerprint
    assert before == load_base(DEMO).fingerprint
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    assert load_base(folder).fingerprint != before


def test_what_is_no_base_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"No base at .*--base"):
        load_base(tmp_path / "nothing")
    folder = copy_base(tmp_path / "other")
    (folder / "model_index.json").write_text('{"_class_name": "FluxPipeline"}', encoding="utf-8")
    with pytest.raises(ModelError, match="FluxPipeline"):
        load_base(folder)
    (folder / "model_index.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="copy the base again"):
        load_base(folder)


def test_a_missing_component_is_named(tmp_path: Path) -> None:
    folder = copy_base(tmp_path / "base")
    (folder / "vae").rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="lacks vae"):
        load_base(folder)


@pytest.mark.parametrize(
    ("stem", "number"),
    [("look_v2511_0008500", 8500), ("look_2511_20", 20), ("v3056", 3056), ("plain", None), ("写真_0100_final", 100)],
)
def test_the_version_is_the_trailing_number(stem: str, number: int | None) -> None:
    assert trailing_number(stem) == number


def test_versions_are_listed_newest_first_and_bases_are_passed_over(tmp_path: Path) -> None:
    for name in ("a_0500", "a_10000", "a_2000", "sub/写真 x_9000", "plain", ".hidden_99999"):
        file = tmp_path / f"{name}.safetensors"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"12345678")
    (tmp_path / "b_7.safetensors.part").write_bytes(b"")
    copy_base(tmp_path / "demo")
    assert [w.name for w in scan_weights(tmp_path)] == ["a_10000", "sub/写真 x_9000", "a_2000", "a_0500", "plain"]
    assert scan_weights(tmp_path / "missing") == []


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..\\secret", "sub/../../secret", "", ".", "a_0500/.."])
def test_names_are_only_looked_up(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.safetensors").write_bytes(b"x")
    weights = tmp_path / "weights2"
    weights.mkdir()
    (weights / "a_0500.safetensors").write_bytes(b"x")
    with pytest.raises(NotFound, match="not in the weights folder"):
        get_weights(weights, name)


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
    for name, width in (("demo_0500", base.width), ("demo_0100", base.width), ("real_9000", 3072)):
        save_file({"m.lora_A.weight": torch.zeros(4, width)}, tmp_path / f"{name}.safetensors")
    (tmp_path / "broken_99999.safetensors").write_bytes(b"\xff" * 40)
    newest = newest_weights(tmp_path, base)
    assert newest is not None and newest.name == "demo_0500"
    assert newest_weights(tmp_path / "missing", base) is None


def test_index_json_is_the_stock_pipelines() -> None:
    index = json.loads((DEMO / "model_index.json").read_text(encoding="utf-8"))
    assert index["_class_name"] == "QwenImageEditPlusPipeline"
