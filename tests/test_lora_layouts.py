"""Every public layout of LoRA files: the effect is the one that merging by hand has, and the report says what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor

from realchar.bench.peaks import own_ram_bytes
from realchar.engine.blocks import stream_transformer
from realchar.engine.lora import AdapterSet
from realchar.engine.weights import WeightSource
from realchar.lora import examine, target_in
from tests.lora_files import LAYOUTS, MODULES, write
from tests.streams import resident
from tests.tiny import DEMO

FOLDER = DEMO / "transformer"
TARGET = target_in(FOLDER)


def pristine() -> dict[str, Tensor]:
    source = WeightSource(FOLDER)
    return {name: source.tensor(name) for name in source.entries}


@pytest.fixture(scope="module")
def in_float32() -> tuple[QwenImageTransformer2DModel, AdapterSet]:
    transformer, blocks = resident(FOLDER)
    return transformer, AdapterSet(transformer, blocks)


@pytest.mark.parametrize("strength", [1.0, pytest.param(0.6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_effect_is_the_one_of_merging_by_hand(
    tmp_path: Path, in_float32: tuple[QwenImageTransformer2DModel, AdapterSet], layout: str, strength: float
) -> None:
    transformer, adapters = in_float32
    path = tmp_path / "x_100.safetensors"
    written = write(path, layout)
    adapters.use([(path, strength)])
    before = pristine()
    for name, tensor in transformer.state_dict().items():
        wanted = before[name].double()
        if name in written.changes:
            full = written.changes[name](before[name])
            wanted = wanted + strength * (full - wanted)
            assert (wanted - before[name].double()).abs().max() > 1e-3
        assert torch.allclose(tensor.double(), wanted, rtol=1e-5, atol=2e-6), name
    adapters.use([])
    assert all(torch.equal(tensor, before[name].float()) for name, tensor in transformer.state_dict().items())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_streamed_in_bfloat16_it_is_rounded_once(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "x_100.safetensors"
    written = write(path, layout)
    transformer, blocks = stream_transformer(FOLDER, torch.device("cpu"), torch.bfloat16, resident=3)
    AdapterSet(transformer, blocks, torch.device("cpu")).use([(path, 1.0)])
    before, seen = pristine(), 0
    for block in blocks.step():
        i = list(transformer.transformer_blocks).index(block)
        for name, tensor in block.named_parameters():
            whole = f"transformer_blocks.{i}.{name}"
            if whole in written.changes and "_mod." not in name:
                wanted = written.changes[whole](before[whole])
                slack = torch.finfo(torch.bfloat16).eps * 0.51 * wanted.abs() + 1e-6
                assert ((tensor.double() - wanted).abs() <= slack).all(), whole
                seen += 1
    assert seen >= 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_report_counts_every_module(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "x_100.safetensors"
    write(path, layout)
    report = examine(path, TARGET)
    assert report.action == ("warn" if layout == "kohya, alpha 0" else "accept"), report.reason
    assert set(MODULES) <= {piece.module for piece in report.pieces} and report.touches_modulation
    assert report.matched == report.total == len(report.to_json()["modules"]) and report.missed == ()
    assert report.rank == (None if layout in ("LoKr", "full patch") else 4)


def test_several_layouts_add_up(tmp_path: Path, in_float32: tuple[QwenImageTransformer2DModel, AdapterSet]) -> None:
    transformer, adapters = in_float32
    layouts = ("kohya", "LoHa", "DoRA, PEFT", "full patch")
    written = [write(tmp_path / f"{i}.safetensors", layout) for i, layout in enumerate(layouts)]
    adapters.use([(tmp_path / f"{i}.safetensors", 0.5) for i in range(len(layouts))])
    before = pristine()
    for name in (f"{module}.weight" for module in MODULES):
        wanted = before[name].double()
        for each in written:
            wanted = wanted + 0.5 * (each.changes[name](before[name]) - before[name].double())
        assert torch.allclose(transformer.get_parameter(name).double(), wanted, rtol=1e-5, atol=2e-6), name
    adapters.use([])


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 3, None], ids=["streamed", "three resident", "resident"])
def test_two_hundred_switches_leave_no_trace(tmp_path: Path, kept: int | None) -> None:
    """Weights equal the pristine ones to the bit after the last is removed, and memory does not grow."""
    layouts = list(LAYOUTS)
    for i, layout in enumerate(layouts):
        write(tmp_path / f"{i}.safetensors", layout)
    if kept is None:
        transformer, blocks = resident(FOLDER, torch.bfloat16)
    else:
        transformer, blocks = stream_transformer(FOLDER, torch.device("cpu"), torch.bfloat16, resident=kept)
    adapters = AdapterSet(transformer, blocks, torch.device("cpu"))
    before, after = [], []
    for seen, first in ((before, True), (after, False)):
        if not first:
            for i in range(200):
                versions = [
                    (tmp_path / f"{(i + k) % len(layouts)}.safetensors", 0.3 + i % 7 / 5) for k in range(1 + i % 3)
                ]
                adapters.use(versions)
                if i % 10 == 0:
                    for _ in blocks.step():
                        pass
                if i == 50:
                    settled = own_ram_bytes()
            adapters.use([])
        for block in blocks.step():
            seen.append([parameter.clone() for _, parameter in sorted(block.named_parameters()) if parameter.numel()])
    assert len(before) == len(after) == 8
    assert all(torch.equal(x, y) for old, new in zip(before, after, strict=True) for x, y in zip(old, new, strict=True))
    grown = own_ram_bytes()
    assert settled is not None and grown is not None and grown < 1.03 * settled
