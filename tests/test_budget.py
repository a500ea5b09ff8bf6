"""From a budget to the blocks that stay on the device, and what happens where the plan was too bold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from realchar.catalog import load_base
from realchar.engine.blocks import stream_transformer
from realchar.engine.devices import cap, find_device
from realchar.engine.memory import Footprint, Need, plan_resident, steady
from realchar.engine.pipeline import Engine
from realchar.errors import InvalidInput, ModelError, OutOfMemory
from realchar.headers import Parts, read_parts
from realchar.schema import Decoded, Degraded, EditRequest, Event, Planned
from realchar.settings import Offload, Settings
from tests.pictures import painting
from tests.streams import LaggingCopies, denoise, resident
from tests.tiny import DEMO, DEVICE, copy_base

GB = 10**9
# The full-size architecture: numbers of parameters as its configs give them.
FULL = Parts(blocks=60, block=226_500_000, modulation=113_300_000, text_layer=252_600_000, rest=240_000_000)
FOOTPRINT = Footprint(weight_bytes=57 * GB, width=3072, vae_width=96, on_gpu=True)
REQUEST = EditRequest(prompt="Photo.", steps=3, cfg=3.0, seed=1)


def need(width: int = 1024, height: int = 1024, **options: Any) -> Need:
    return Need.of(FULL, FOOTPRINT, width, height, options.pop("steps", 40), **options)


@pytest.mark.parametrize("budget", [4, 6, 8, 12, 16, 24, 32, 48])
def test_the_plan_fits_its_budget_and_wastes_none(budget: int) -> None:
    planned = plan_resident(need(), budget * GB)
    assert need().peak(planned) <= budget * GB
    if planned < 60:
        assert need().peak(planned + 1) > budget * GB or planned == 59


def test_a_larger_budget_keeps_no_fewer_blocks() -> None:
    counts = [plan_resident(need(), budget * GB // 10) for budget in range(10, 400)]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 60


def test_larger_pictures_longer_schedules_and_loras_leave_less_room() -> None:
    assert plan_resident(need(2048, 2048), 16 * GB) < plan_resident(need(), 16 * GB)
    assert need(steps=100).fixed > need().fixed
    on_card = need(lora_bytes=6 * GB).fixed - need().fixed
    assert on_card == 6 * GB * 2 // 60  # what passes through the slots
    in_ram = [Need.of(FULL, replace(FOOTPRINT, on_gpu=False), 1024, 1024, 40, lora).fixed for lora in (0, 6 * GB)]
    assert in_ram[1] - in_ram[0] == 6 * GB


def test_on_the_cpu_everything_counts_twice() -> None:
    on_cpu = Need.of(FULL, replace(FOOTPRINT, on_gpu=False), 1024, 1024, 40)
    assert on_cpu.block == 2 * need().block and on_cpu.compute == 2 * need().compute


@pytest.mark.parametrize(
    ("planned", "now", "expected"), [(20, 18, 18), (20, 12, 20), (20, 25, 20), (60, 58, 60), (3, 2, 2), (5, 5, 5)]
)
def test_blocks_are_not_spread_anew_for_a_trifle(planned: int, now: int, expected: int) -> None:
    assert steady(planned, now, 60) == expected


def test_parts_of_the_embedded_base() -> None:
    parts = read_parts(DEMO)
    transformer, blocks = stream_transformer(DEMO / "transformer", torch.device("cpu"), torch.float32)
    stream = blocks._stream
    assert parts.blocks == len(transformer.transformer_blocks) == 8
    assert 0 <= stream._groups[0].layout.numel - parts.block < 64 * 40  # what aligning adds
    assert parts.text_layer and parts.modulation and parts.rest


def test_parts_of_a_damaged_base_are_a_sentence(tmp_path: Path) -> None:
    base = copy_base(tmp_path / "base")
    (base / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"no header")
    with pytest.raises(ModelError, match="copy the folder again"):
        read_parts(base)


@pytest.mark.usefixtures("two_threads")
def test_blocks_may_stay_and_go_between_steps() -> None:
    expected = denoise(*resident(DEMO / "transformer"))
    transformer, blocks = stream_transformer(
        DEMO / "transformer", torch.device("cpu"), torch.float32, accelerator=LaggingCopies()
    )
    transformer.eval().requires_grad_(False)
    block = blocks.num_bytes // 2
    for number in (0, 3, 8, 2, 7, 0):
        blocks.keep(number)
        assert blocks.num_resident == number
        held = number + min(2, 8 - number)
        assert held * block * 0.98 < blocks.num_bytes < held * block * 1.02
        assert torch.equal(denoise(transformer, blocks), expected)


@pytest.mark.usefixtures("two_threads")
def test_what_could_not_be_kept_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    transformer, blocks = stream_transformer(DEMO / "transformer", torch.device("cpu"), torch.float32)
    transformer.eval().requires_grad_(False)
    stream, allocated = blocks._stream, []
    original = stream._buffer

    def fail_at_the_third(numel: int, *dtype: torch.dtype) -> torch.Tensor:
        allocated.append(numel)
        if len(allocated) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(numel, *dtype)

    monkeypatch.setattr(stream, "_buffer", fail_at_the_third)
    with pytest.raises(torch.OutOfMemoryError):
        blocks.keep(5)
    assert blocks.num_resident == 2
    assert torch.equal(denoise(transformer, blocks), denoise(*resident(DEMO / "transformer")))


def run(engine: Engine, request: EditRequest = REQUEST) -> list[Event]:
    return list(engine.run(request, painting(96, 64), (0, 0, 96, 64), []))


def pixels(events: list[Event]) -> np.ndarray[Any, Any]:
    assert isinstance(events[-1], Decoded)
    return np.asarray(events[-1].image)


def plan_of(events: list[Event]) -> Planned:
    return next(event for event in events if isinstance(event, Planned))


@pytest.fixture(scope="module")
def expected() -> np.ndarray[Any, Any]:
    return pixels(run(Engine.load(load_base(DEMO), DEVICE)))


def test_a_changed_budget_holds_from_the_next_run_on(expected: np.ndarray[Any, Any]) -> None:
    base = load_base(DEMO)
    engine = Engine.load(base, DEVICE, Offload.STREAM)
    need = Need.of(read_parts(base.path), engine.memory.footprint, 96, 64, REQUEST.steps)
    for number in (8, 3, 0):
        engine.memory.budget = need.peak(number)
        events = run(engine)
        assert plan_of(events).resident == number
        assert np.array_equal(pixels(events), expected)
    engine.memory.budget = None
    assert plan_of(run(engine)).resident == 8, "without a budget, what is free decides"
    engine.memory.resident_blocks = 5
    assert plan_of(run(engine)).resident == 5


@pytest.mark.parametrize("stage", ["encode_prompts", "velocities", "encode_image", "decode"])
def test_blocks_are_given_up_until_a_stage_fits(
    expected: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    engine = Engine.load(load_base(DEMO), DEVICE, Offload.STREAM, resident_blocks=8)
    original = getattr(engine.family, stage)
    most = 2

    def fail_with_many(*args: Any) -> Any:
        if engine.family.blocks.num_resident > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(*args)

    monkeypatch.setattr(engine.family, stage, fail_with_many)
    events = run(engine)
    given_up = [event for event in events if isinstance(event, Degraded) and event.code == "resident_blocks"]
    assert [event.args for event in given_up] == [{"resident": 4}, {"resident": 2}]
    assert np.abs(pixels(events).astype(int) - expected).max() <= 1  # tiles round by a level here and there
    monkeypatch.undo()
    assert plan_of(run(engine)).resident == 8, "the next run begins with its own plan"


def test_a_step_is_done_again_and_none_is_lost(expected: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out in the middle of the second step: it is repeated from its own latents."""
    engine = Engine.load(load_base(DEMO), DEVICE, Offload.STREAM, resident_blocks=4)
    calls = []
    original = engine.family.velocities

    def fail_once(branches: Any, wanted: Any) -> Any:
        calls.append(1)
        work = original(branches, wanted)
        if len(calls) == 2:
            next(work)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return work

    monkeypatch.setattr(engine.family, "velocities", fail_once)
    assert np.array_equal(pixels(run(engine)), expected)
    assert len(calls) == REQUEST.steps + 1


def test_where_nothing_is_left_to_give_up_the_run_fails_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.load(load_base(DEMO), DEVICE, Offload.STREAM, resident_blocks=8)

    def fail(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine.family, "velocities", fail)
    with pytest.raises(OutOfMemory, match="denoise") as caught:
        run(engine)
    assert caught.value.__context__ is None
    assert engine.family.blocks.num_resident == 0


def test_a_card_has_its_index_and_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch asks for a cap: a card with its index, and a share of the whole."""
    shares = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=24 * GB))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append((share, device))
    )
    assert find_device("auto") == find_device("cuda") == torch.device("cuda:1")
    assert find_device("cuda:0") == torch.device("cuda:0")
    for room in (6 * GB, None, 48 * GB, -1):
        cap(find_device("cuda:0"), room)
    cap(torch.device("cpu"), GB)
    assert shares == [(share, torch.device("cuda:0")) for share in (0.25, 1.0, 1.0, 0.0)]


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1e9"])
def test_impossible_budgets_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"such as 8 .*or 0 for all"):
        Settings.load({"REALCHAR_VRAM": text})


def test_settings_say_what_the_engine_is_given() -> None:
    settings = Settings.load({"REALCHAR_VRAM": "7.5", "REALCHAR_RESIDENT_BLOCKS": "0"})
    assert (settings.budget, settings.kept_blocks) == (7_500_000_000, 0)
    settings = Settings.load({})
    assert (settings.budget, settings.kept_blocks) == (None, None)
