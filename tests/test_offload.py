"""Offload modes: the same picture in each, nothing left on the device after a run, and what each is refused for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from realchar.catalog import load_base
from realchar.engine.devices import compute_dtype, find_device
from realchar.engine.families.qwen_image_edit import QwenImageEdit
from realchar.engine.memory import Footprint, estimate_bytes, least_bytes
from realchar.engine.offload import Turns
from realchar.engine.pipeline import Engine
from realchar.errors import InvalidInput, OutOfMemory
from realchar.headers import read_sizes
from realchar.schema import Decoded, EditRequest, LoraRef, Planned
from realchar.settings import Offload, Settings
from tests.pictures import painting
from tests.streams import write_lora
from tests.tiny import DEMO, DEVICE

MODES = (Offload.RESIDENT, Offload.STREAM, Offload.MODEL, Offload.SEQUENTIAL)
MOVING = (Offload.MODEL, Offload.SEQUENTIAL)
ON_GPU = DEVICE == "cuda"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Let branches run one after the other on the CPU, as on a card: accelerate's hooks are for one at a time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def engine_in(mode: Offload) -> Engine:
    """Return an engine in any mode on the tests' device; the CPU stands in for a card that weights move to."""
    device = find_device(DEVICE)
    return Engine(load_base(DEMO), QwenImageEdit.load(DEMO, device, compute_dtype(device), mode), resident_blocks=2)


def run(engine: Engine, lora: Path | None = None, strength: float = 1.0) -> list[Any]:
    refs = (LoraRef("x", strength),) if lora else ()
    request = EditRequest(prompt="Photo.", steps=2, cfg=3.0, seed=1, loras=refs)
    return list(engine.run(request, painting(96, 64), (0, 0, 96, 64), [lora] if lora else []))


def pixels(events: list[Any]) -> np.ndarray[Any, Any]:
    assert isinstance(events[-1], Decoded)
    return np.asarray(events[-1].image)


def test_the_same_pictures_in_every_mode_with_loras_and_after_them(tmp_path: Path) -> None:
    expected: list[np.ndarray[Any, Any]] = []
    for mode in MODES:
        engine = engine_in(mode)
        lora = write_lora(tmp_path / "x.safetensors", engine.family.transformer)  # type: ignore[attr-defined]
        runs = [run(engine, *choice) for choice in ((), (lora, 1.0), (lora, 0.4), (), (lora, 1.0))]
        plan = next(event for event in runs[0] if isinstance(event, Planned))
        assert (plan.mode, engine.mode) == (mode, mode)
        found = [pixels(events) for events in runs]
        expected = expected or found
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True)), mode
    assert np.array_equal(expected[0], expected[3]) and np.array_equal(expected[1], expected[4])
    assert not np.array_equal(expected[0], expected[1]) and not np.array_equal(expected[1], expected[2])


def held(engine: Engine) -> int:
    """Return the bytes on the card, or on the CPU the number of components that are there for now."""
    return torch.cuda.memory_allocated() if ON_GPU else len(engine.family._turns._there)  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", MOVING)
def test_nothing_stays_on_the_device_after_a_run_however_it_ends(
    mode: Offload, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_in(mode)
    run(engine)
    engine._prompts.clear()
    idle = held(engine)
    events = engine.run(EditRequest(prompt="Photo.", steps=2, cfg=3.0), painting(96, 64), (0, 0, 96, 64), [])
    for event in events:
        if event.kind == "step":
            assert held(engine) > idle or mode is Offload.SEQUENTIAL
            break
    events.close()  # type: ignore[attr-defined]
    engine._prompts.clear()
    assert held(engine) == idle

    def fail(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine.family, "decode", fail)
    with pytest.raises(OutOfMemory, match=r"stage 'decode'.*or the offload mode stream"):
        run(engine)
    engine._prompts.clear()
    assert held(engine) == idle


def test_the_log_says_what_moves(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "realchar.engine")
    to = "GPU" if ON_GPU else "CPU"
    expected = {
        Offload.STREAM: [f"block 3/8 -> {to}", f"modulation 1/8 -> {to}", "text encoder's layer 1/"],
        Offload.MODEL: [f"text_encoder -> {to}", f"vae -> {to}", f"transformer -> {to}", "transformer -> CPU"],
        Offload.SEQUENTIAL: [f"transformer_blocks.2.attn.to_q.weight -> {to}", f"vae -> {to}"],
    }
    for mode, lines in expected.items():
        caplog.clear()
        run(engine_in(mode))
        assert [line for line in lines if line not in caplog.text] == [], mode


def test_half_a_component_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(torch.device("cpu"))
    moved: list[str] = []

    class Large(nn.Linear):
        def to(self, device: Any) -> Any:
            moved.append(str(device))
            if len(moved) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return self

    turns.device = torch.device("meta")  # a device that its weights are not on, as a card
    turns.add("large", Large(2, 2))
    with pytest.raises(torch.OutOfMemoryError):
        turns.onload("large")
    assert moved == ["cpu", "meta", "cpu"]
    turns.onload("large")
    turns.onload("another that never moves")
    turns.offload()
    assert moved == ["cpu", "meta", "cpu", "meta", "cpu"]


@pytest.mark.parametrize("mode", MOVING)
def test_modes_that_need_a_card_are_refused_without_one(mode: Offload) -> None:
    with pytest.raises(InvalidInput, match=rf"'{mode}' moves weights to a graphics card.*choose auto, stream or resid"):
        Engine.load(load_base(DEMO), "cpu", mode)


def test_auto_streams_on_a_card_only() -> None:
    assert Offload.AUTO.resolved(on_gpu=True) is Offload.STREAM
    assert Offload.AUTO.resolved(on_gpu=False) is Offload.RESIDENT
    assert Engine.load(load_base(DEMO), DEVICE, Offload.AUTO).mode is Offload.AUTO.resolved(on_gpu=ON_GPU)
    assert Settings.load({}).offload is Offload.AUTO
    with pytest.raises(InvalidInput, match=r"REALCHAR_OFFLOAD is 'none', but 'auto', .* or 'sequential' is needed"):
        Settings.load({"REALCHAR_OFFLOAD": "none"})


def test_what_each_mode_needs_at_least() -> None:
    base, sizes = load_base(DEMO), read_sizes(DEMO)
    assert sum(sizes.components.values()) < base.weight_bytes and set(sizes.components) == {
        "transformer",
        "text_encoder",
        "vae",
    }
    assert 0 < sizes.largest < min(sizes.components.values())
    need = {mode: least_bytes(base, mode, 256, 256, on_gpu=True) for mode in Offload}
    assert need[Offload.AUTO] == need[Offload.STREAM]
    assert need[Offload.SEQUENTIAL] < need[Offload.MODEL] < need[Offload.RESIDENT]
    assert need[Offload.RESIDENT] == estimate_bytes(Footprint.of(base, on_gpu=True), 256, 256)
    assert least_bytes(base, Offload.AUTO, 256, 256, on_gpu=False) == least_bytes(
        base, Offload.RESIDENT, 256, 256, on_gpu=False
    )
