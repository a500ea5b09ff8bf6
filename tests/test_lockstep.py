"""Several runs in one loop: each has its own bits, whoever joins, leaves, fails or is dropped beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from realchar.catalog import load_base
from realchar.engine.memory import MOST_TOGETHER, Footprint, Need, plan_width
from realchar.engine.pipeline import Engine
from realchar.engine.together import Make, Together, Work
from realchar.errors import InvalidInput, OutOfMemory, RealCharError
from realchar.headers import read_parts
from realchar.schema import Decoded, Degraded, EditRequest, Ended, LoraRef, Stage, Step, Tick
from realchar.settings import Offload, Strategy
from tests.streams import EVERY_KIND, write_lora
from tests.tiny import DEMO, DEVICE

pytestmark = pytest.mark.usefixtures("two_threads")

BASE = EditRequest(prompt="Photo.", steps=3, cfg=3.0, seed=1)
# Sizes, schedules, prompts, guidance and seeds of their own.
REQUESTS: dict[str, tuple[EditRequest, tuple[int, int]]] = {
    "a": (BASE, (64, 32)),
    "b": (replace(BASE, prompt="A photo of a cat, and of more than that.", steps=2, cfg=1.0, seed=2), (32, 32)),
    "c": (replace(BASE, steps=4, seed=3, negative_prompt="drawing"), (32, 96)),
    "d": (replace(BASE, cfg=1.0, seed=4), (64, 32)),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(load_base(DEMO), DEVICE, Offload.STREAM, resident_blocks=3, strategy=Strategy.BATCH)


def picture(size: tuple[int, int]) -> Image.Image:
    width, height = size
    return Image.fromarray(np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8), "RGB")


def work(engine: Engine, name: str, loras: tuple[Path, ...] = ()) -> Work[Decoded]:
    request, size = REQUESTS[name]
    request = replace(request, loras=tuple(LoraRef(path.stem) for path in loras))
    return engine.work(request, picture(size), (0, 0, *size), list(loras))


def pixels(decoded: Decoded) -> np.ndarray:
    return np.asarray(decoded.image)


@pytest.fixture(scope="module")
def alone(engine: Engine) -> dict[str, np.ndarray]:
    found = {}
    for name, (request, size) in REQUESTS.items():
        *_, last = engine.run(request, picture(size), (0, 0, *size), [])
        found[name] = pixels(last)  # type: ignore[arg-type]
    return found


def give(engine: Engine, names: str) -> Callable[[], tuple[str, Make] | None]:
    left = list(names)
    return lambda: (left[0], partial(work, engine, left.pop(0))) if left else None


def run(loop: Together[str]) -> tuple[dict[str, Ended], list[tuple[str, Any]]]:
    ends, said = {}, []
    with closing(loop.run()) as events:
        for key, event in events:
            said.append((key, event))
            if isinstance(event, Ended):
                ends[key] = event
    return ends, said


@pytest.mark.parametrize("width", [1, 2, 4])
def test_each_picture_is_the_one_that_it_would_be_alone(
    engine: Engine, alone: dict[str, np.ndarray], width: int
) -> None:
    ends, said = run(engine.together(give(engine, "abcd"), width))
    assert {name: end.error for name, end in ends.items()} == dict.fromkeys("abcd")
    for name, end in ends.items():
        assert np.array_equal(pixels(end.value), alone[name]), name
    for name, (request, _) in REQUESTS.items():
        steps = [event for key, event in said if key == name and isinstance(event, Step)]
        assert [step.i for step in steps] == list(range(1, request.steps + 1))
        assert sum(key == name and isinstance(event, Tick) for key, event in said) >= 8 * request.steps


def test_blocks_are_loaded_once_a_step_for_all(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    list(engine.run(REQUESTS["d"][0], picture((64, 32)), (0, 0, 64, 32), []))  # the schedule's table is there
    stream = engine.family.blocks._stream  # type: ignore[attr-defined]
    original, loads = stream._load, []

    def load(buffer: Any, i: int, after: Any) -> Any:
        loads.append(i)
        return original(buffer, i, after)

    monkeypatch.setattr(stream, "_load", load)
    counts = []
    for names, width in (("d", 1), ("dd", 1), ("dd", 2)):
        loads.clear()
        left = [(str(i), partial(work, engine, name)) for i, name in enumerate(names)]
        run(engine.together(lambda left=left: left.pop(0) if left else None, width))  # type: ignore[misc]
        counts.append(len(loads))
    assert counts[1] == 2 * counts[0] and counts[2] == counts[0]


def test_one_that_joins_later_is_none_the_worse(engine: Engine, alone: dict[str, np.ndarray]) -> None:
    given: list[str] = []
    steps: list[str] = []

    def more() -> tuple[str, Make] | None:
        name = "c" if not given else "d" if len(given) == 1 and len(steps) >= 2 else None
        if name is None:
            return None
        given.append(name)
        return name, partial(work, engine, name)

    ends = {}
    with closing(engine.together(more, 4).run()) as events:
        for key, event in events:
            steps += [key] if isinstance(event, Step) else []
            ends |= {key: event} if isinstance(event, Ended) else {}
    assert steps == ["c", "c", "c", "d", "c", "d", "d"]
    assert all(np.array_equal(pixels(ends[name].value), alone[name]) for name in "cd")


@pytest.mark.parametrize("at", [0, 3, 9, 14])
def test_dropping_one_leaves_the_others_alone(engine: Engine, alone: dict[str, np.ndarray], at: int) -> None:
    loop = engine.together(give(engine, "abd"), 3)
    ends, ticks = {}, 0
    with closing(loop.run()) as events:
        for key, event in events:
            assert not (key == "b" and ticks > at), "nothing is told of it any more"
            if key == "b" and isinstance(event, Tick):
                if ticks == at:
                    loop.drop("b")
                ticks += 1
            ends |= {key: event} if isinstance(event, Ended) else {}
    assert set(ends) == {"a", "d"}
    assert all(np.array_equal(pixels(ends[name].value), alone[name]) for name in "ad")
    assert engine._under_way == 0


def test_closing_the_loop_closes_all_and_the_next_is_right(engine: Engine, alone: dict[str, np.ndarray]) -> None:
    for stop in (1, 5, 20, 40):
        with closing(engine.together(give(engine, "abcd"), 4).run()) as events:
            for _ in zip(range(stop), events, strict=False):
                pass
        assert engine._under_way == 0
    ends, _ = run(engine.together(give(engine, "b"), 4))
    assert np.array_equal(pixels(ends["b"].value), alone["b"])


def test_a_failure_is_that_ones_own(
    engine: Engine, alone: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = engine.family.decode

    def fail(latents: torch.Tensor, tile: Any = None) -> torch.Tensor:
        if latents.shape[-1] == latents.shape[-2]:  # the square one
            raise ValueError("no")
        return original(latents, tile)

    monkeypatch.setattr(engine.family, "decode", fail)
    ends, _ = run(engine.together(give(engine, "abd"), 3))
    assert isinstance(ends["b"].error, ValueError)
    assert all(np.array_equal(pixels(ends[name].value), alone[name]) for name in "ad")


def fail_when(monkeypatch: pytest.MonkeyPatch, engine: Engine, when: Callable[[int], bool]) -> None:
    """Let memory run out in the fifth block of every step of so many branches."""
    original = engine.family.velocities

    def caught(branches: Any, wanted: Any = lambda _: True) -> Any:
        work = original(branches, wanted)
        i = 0
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value
            i += 1
            if i == 5 and when(len(branches)):
                work.close()
                raise torch.OutOfMemoryError("no")
            yield

    monkeypatch.setattr(engine.family, "velocities", caught)


def test_where_memory_is_short_fewer_run_together(
    engine: Engine, alone: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_when(monkeypatch, engine, lambda branches: branches > 3)
    loop = engine.together(give(engine, "abcd"), 4)
    ends, said = run(loop)
    assert all(np.array_equal(pixels(ends[name].value), alone[name]) for name in "abcd")
    told = [(key, event.text) for key, event in said if isinstance(event, Degraded)]
    two, one = "at most 2 pictures are now made together", "one picture is made at a time"
    # First all four are too many, then "a" beside "c", once "b" has left.
    assert told == [*((name, two) for name in "abcd"), ("a", one), ("c", one)] and loop.width == 1
    assert engine.family.blocks.num_resident == 3, "blocks stay: fewer runs came first"


def test_one_that_does_not_fit_beside_others_is_made_again_alone(
    engine: Engine, alone: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = engine.family.decode

    def decode(latents: torch.Tensor, tile: Any = None) -> torch.Tensor:
        if engine._under_way > 1 and tuple(latents.shape[-2:]) == (12, 4):  # that of "c", while others are under way
            raise torch.OutOfMemoryError("no")
        return original(latents, tile)

    monkeypatch.setattr(engine.family, "decode", decode)
    ends, said = run(engine.together(give(engine, "caaad"), 2))
    engine.family.blocks.keep(3)  # type: ignore[attr-defined]
    assert all(np.array_equal(pixels(ends[name].value), alone[name]) for name in "acd")
    told = [event for key, event in said if key == "c" and isinstance(event, Degraded) and event.code == "alone"]
    assert len(told) == 1, "once is enough: nobody joins it any more"
    begun = [i for i, (key, event) in enumerate(said) if key == "c" and event == Stage("encode_text")]
    ended = next(i for i, (key, event) in enumerate(said) if key == "c" and isinstance(event, Ended))
    assert len(begun) == 2 and {key for key, _ in said[begun[1] : ended]} == {"c"}


def test_where_none_fits_each_fails_with_a_sentence(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fail_when(patch, engine, lambda _: True)
        ends, _ = run(engine.together(give(engine, "ab"), 2))
    assert all(isinstance(end.error, OutOfMemory) and "denoise" in end.error.message for end in ends.values())
    assert engine._under_way == 0
    engine.family.blocks.keep(3)  # type: ignore[attr-defined]


def test_only_the_same_versions_share_a_loop(engine: Engine, tmp_path: Path) -> None:
    transformer = engine.family.transformer  # type: ignore[attr-defined]
    one, other = (write_lora(tmp_path / f"{i}.safetensors", transformer, EVERY_KIND, seed=i) for i in (1, 2))
    assert engine.joins([(one, 1.0)]), "nothing is under way"
    left = [(name, partial(work, engine, name, (path,))) for name, path in (("a", one), ("b", one), ("c", other))]
    ends, _ = run(engine.together(lambda: left.pop(0) if left else None, 3))
    assert ends["a"].error is None and ends["b"].error is None
    assert isinstance(ends["c"].error, InvalidInput) and "in turn" in ends["c"].error.message
    with closing(engine.together(give(engine, "a"), 1).run()) as events:
        next(event for _, event in events if isinstance(event, Tick))
        assert engine.joins([]) and not engine.joins([(one, 1.0)])


def test_alone_raises_what_the_run_raises(engine: Engine) -> None:
    def broken() -> Work[None]:
        yield Stage("load")
        raise RealCharError("x", "No.")

    with pytest.raises(RealCharError, match="No"):
        list(engine.alone(broken()))


def test_how_many_fit_is_a_pure_function_of_the_budget() -> None:
    parts, footprint = read_parts(DEMO), Footprint(57_000_000_000, 3072, 96, on_gpu=True)

    def need(jobs: int) -> Need:
        return Need.of(parts, footprint, 1024, 1024, 20, branches=2 * jobs)

    peaks = [need(jobs).peak(0) for jobs in range(1, MOST_TOGETHER + 2)]
    assert peaks == sorted(set(peaks))
    for jobs, peak in enumerate(peaks[:MOST_TOGETHER], 1):
        assert plan_width(need, peak) == jobs and plan_width(need, peak - 1) == max(1, jobs - 1)
    assert plan_width(need, peaks[-1]) == MOST_TOGETHER


def test_only_the_strategy_for_batches_makes_several_together(engine: Engine) -> None:
    found = {}
    for strategy in Strategy:
        engine.memory.strategy = strategy
        found[strategy] = engine.memory.width(BASE)
    engine.memory.strategy = Strategy.BATCH
    engine.memory.resident_blocks = 8
    assert engine.memory.width(BASE) == 1, "where all blocks stay nothing is loaded, and nothing to be gained"
    engine.memory.resident_blocks = 3
    assert found[Strategy.AUTO] == found[Strategy.QUALITY] == 1 < found[Strategy.BATCH] <= MOST_TOGETHER
    assert Engine.load(load_base(DEMO), "cpu", Offload.RESIDENT, strategy=Strategy.BATCH).memory.width(BASE) == 1
