"""Compiled blocks: the same numbers up to rounding, one code for all blocks and prompts, and a sentence where none can be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers.models.transformers.transformer_qwenimage import apply_rotary_emb_qwen

from realchar.catalog import load_base
from realchar.engine import compiled
from realchar.engine.blocks import stream_transformer
from realchar.engine.compiled import rotated
from realchar.engine.lora import AdapterSet
from realchar.engine.pipeline import Engine
from realchar.errors import ModelError
from realchar.settings import Offload, Precision, Settings, Speed
from tests.streams import denoise, resident, write_lora
from tests.tiny import DEMO, DEVICE

FOLDER = DEMO / "transformer"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own


@pytest.fixture
def one_thread() -> object:
    """Branches run one after the other, as on a card: side by side both would compile the same at once."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_rotation_in_real_numbers_is_the_one_in_complex_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 11, 3, 16, generator=generator)
    turns = torch.polar(torch.ones(11, 8), torch.randn(11, 8, generator=generator) * 9)
    expected = apply_rotary_emb_qwen(x, turns, use_real=False)
    assert torch.allclose(rotated(x, torch.view_as_real(turns)), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8_FAST])
def test_compiled_blocks_compute_the_same_with_one_code_for_all(tmp_path: Path, precision: Precision) -> None:
    torch._dynamo.reset()
    dtype, device = (torch.bfloat16 if DEVICE == "cuda" else torch.float32), torch.device(DEVICE)
    reference = resident(FOLDER, dtype, DEVICE)
    model = stream_transformer(FOLDER, device, dtype, resident=3, speed=Speed(precision, compiled=True))
    eager = stream_transformer(FOLDER, device, dtype, resident=3, speed=Speed(precision))
    path = write_lora(tmp_path / "x.safetensors", reference[0])
    graphs: list[int] = []
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for cfg, strength in ((True, 0.0), (False, 0.5), (True, 0.0)):  # prompts of two lengths, then of one
        for each in (model, eager):
            AdapterSet(*each).use([(path, strength)] if strength else [])
        found, expected = denoise(*model, cfg=cfg), denoise(*eager, cfg=cfg)
        # One rounding to three bits that falls otherwise is an eighth, and others follow from it.
        bound = 0.3 if precision is Precision.FP8_FAST else 1e-4 if DEVICE == "cpu" else 0.1
        assert (found - expected).norm() / expected.norm() < bound
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] == graphs[2], "nothing is compiled anew for a shorter prompt or a LoRA"
    assert graphs[0] - before == (1 if precision is Precision.BF16 else 1 + len({(3, 1), (1, 1), (1, 3)}))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_resident_weights_can_run_compiled_too() -> None:
    plain = Engine.load(load_base(DEMO), DEVICE).family
    family = Engine.load(load_base(DEMO), DEVICE, Offload.RESIDENT, speed=Speed(compiled=True)).family
    expected = denoise(plain.transformer, plain.blocks)  # type: ignore[attr-defined]
    found = denoise(family.transformer, family.blocks)  # type: ignore[attr-defined]
    assert family.blocks.compiled
    assert (found - expected).norm() / expected.norm() < (1e-4 if DEVICE == "cpu" else 0.1)


def test_a_machine_that_cannot_compile_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> object:
        raise RuntimeError("No working C++ compiler found\nsecond line")

    monkeypatch.setattr(torch, "compile", fail)
    compiled._check_compiler.cache_clear()
    with pytest.raises(ModelError, match=r"can't be compiled.*No working C\+\+ compiler found\); install"):
        Engine.load(load_base(DEMO), "cpu", Offload.STREAM, speed=Speed(compiled=True))
    compiled._check_compiler.cache_clear()


@pytest.mark.parametrize(("text", "value"), [("1", True), ("no", False), ("On", True)])
def test_the_setting_is_a_switch(text: str, value: bool) -> None:
    settings = Settings.load({"REALCHAR_COMPILE": text, "REALCHAR_PRECISION": "fp8"})
    assert settings.speed == Speed(Precision.FP8, compiled=value)
