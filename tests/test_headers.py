"""What headers tell of a base's weights: each damage is one sentence, whoever meets it first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from realchar.catalog import load_base
from realchar.doctor import Report, check_models
from realchar.engine.pipeline import Engine
from realchar.errors import InvalidInput, ModelError
from realchar.headers import MODELS, check_headers, weight_files
from realchar.requests import check_blocks
from realchar.settings import Offload, Settings
from tests.tiny import DEMO, copy_base

WITHOUT_A_CARD = (Offload.RESIDENT, Offload.STREAM)

CPU_TORCH = Report({"version": "2", "cuda": None, "usable": False}, "")
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (lambda file: file.write_bytes(file.read_bytes()[:-5000]), "is cut off"),
    "empty": (lambda file: file.write_bytes(b""), "no whole header"),
    "nonsense": (
        lambda file: file.write_bytes(b"\x10" + bytes(7) + b"this is no json!" + bytes(100)),
        "no whole header",
    ),
    "missing": (lambda file: file.unlink(), "no .safetensors file"),
}


def weights_of(base: Path, component: str) -> Path:
    return next((base / component).glob("*.safetensors"))


def test_the_embedded_base_is_whole() -> None:
    check_headers(DEMO)


@pytest.mark.parametrize("component", MODELS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_sentence_for_engine_and_doctor(tmp_path: Path, component: str, damage: str) -> None:
    base = copy_base(tmp_path / "base")
    harm, what = DAMAGES[damage]
    (base / component / "other.json").write_text("{}")  # else the folder is empty, and that is told already
    harm(weights_of(base, component))
    for offload in WITHOUT_A_CARD:
        with pytest.raises(ModelError, match=f"{component}: .*{what}.*copy the folder again") as caught:
            Engine.load(load_base(base), "cpu", offload)
        settings = Settings.load({}, base=str(base), offload=offload)
        findings = check_models(settings, CPU_TORCH)
        assert [(finding.key, finding.state) for finding in findings] == [("base", "bad")]
        assert findings[0].text == caught.value.message


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    base = copy_base(tmp_path / "base")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    weights_of(base, "vae").rename(base / "vae" / "one.safetensors")
    (base / "vae" / "x.safetensors.index.json").write_text(json.dumps(index))
    assert [file.name for file in weight_files(base / "vae")] == ["one.safetensors", "two.safetensors"]
    with pytest.raises(ModelError, match=r"vae: 'two.safetensors' is missing"):
        check_headers(base)


@pytest.mark.parametrize("offload", WITHOUT_A_CARD)
def test_a_text_encoder_that_lacks_a_weight_is_not_filled_with_random_numbers(tmp_path: Path, offload: Offload) -> None:
    base = copy_base(tmp_path / "base")
    file = weights_of(base, "text_encoder")
    tensors = load_file(file)
    del tensors["visual.blocks.1.mlp.down_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"visual\.blocks\.1\.mlp\.down_proj\.weight' is missing"):
        Engine.load(load_base(base), "cpu", offload)


def test_libraries_are_silent_about_what_we_tell(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = copy_base(tmp_path / "base")
    file = weights_of(base, "vae")
    tensors = load_file(file)
    name = next(iter(tensors))
    tensors[name] = torch.zeros(3)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="can't be read"):
        Engine.load(load_base(base), "cpu")
    assert not capfd.readouterr().err


def test_what_a_base_or_machine_can_not_do_is_refused_before_anything_is_loaded() -> None:
    base = load_base(DEMO)
    check_blocks(Settings.load({}, offload=Offload.STREAM, resident_blocks=8), base)
    check_blocks(Settings.load({}, device="cpu", resident_blocks=99), base)  # without streaming it has no effect
    for mode in (Offload.MODEL, Offload.SEQUENTIAL):
        with pytest.raises(InvalidInput, match=f"Offload mode '{mode}' moves weights to a graphics card"):
            check_blocks(Settings.load({}, device="cpu", offload=mode), base)
    with pytest.raises(InvalidInput, match=r"99 resident blocks.*choose 0 to 8"):
        check_blocks(Settings.load({}, offload=Offload.STREAM, resident_blocks=99), base)
    with pytest.raises(InvalidInput, match=r"-5 resident blocks.*0 or more, or -1"):
        Settings.load({"REALCHAR_RESIDENT_BLOCKS": "-5"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LEASE_S", "nan"),
        ("PORT", "99999"),
        ("MAX_QUEUED", "0"),
        ("UPLOADS_HOURS", "inf"),
        ("UPLOADS_HOURS", "-1"),
        ("UPLOAD_MB", "0"),
        ("MAX_MEGAPIXELS", "-3"),
    ],
)
def test_impossible_numbers_are_refused_at_the_start(name: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=rf"REALCHAR_{name} is .*; choose a value from"):
        Settings.load({f"REALCHAR_{name}": text})
