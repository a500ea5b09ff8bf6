"""Bases and LoRA versions as they lie on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from realchar.catalog import load_base
from realchar.errors import ModelError
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


def test_index_json_is_the_stock_pipelines() -> None:
    index = json.loads((DEMO / "model_index.json").read_text(encoding="utf-8"))
    assert index["_class_name"] == "QwenImageEditPlusPipeline"
