"""Memory that runs out, numbers that overflow, or anything else that breaks, at every place of a run: the job ends with a
sentence or its picture, nothing stays on the device, and the next picture is right."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import realchar.convert
from realchar.catalog import load_base
from realchar.convert import conversion
from realchar.engine import denoising, modulation, pipeline
from realchar.engine.blocks import StreamedBlocks
from realchar.engine.devices import release
from realchar.engine.pipeline import Engine
from realchar.errors import OutOfMemory, RealCharError, ResultError
from realchar.images import PrepareOptions
from realchar.schema import Decoded, Degraded, EditRequest, Event, LoraRef, Saved
from realchar.settings import Offload
from tests.streams import ATTENTION, MLP, MODULATION, write_lora
from tests.tiny import DEMO, DEVICE

SIZE = (64, 32)
REQUEST = EditRequest(prompt="Photo.", steps=2, cfg=3.0, seed=1)
ONCE, ALWAYS, ANYTHING, NAN = "memory, once", "memory, always", "anything", "no numbers"


@dataclass(frozen=True)
class Place:
    """A call in the engine that is to break, and at which of its calls in a run.

    spared: memory that runs out there is answered by giving something up; gives: what it returns can be no numbers;
    streamed: only streaming comes there; kept: what it gives is kept for the next run; once: only memory, and only once.
    """

    of: Callable[[Engine], tuple[Any, str]]
    at: tuple[int, ...] = (1,)
    spared: bool = True
    gives: bool = True
    streamed: bool = False
    kept: bool = False
    once: bool = False


def block(i: int) -> Callable[[Engine], tuple[Any, str]]:
    return lambda engine: (engine.family.transformer.transformer_blocks[i], "forward")  # type: ignore[attr-defined]


PLACES = {
    "LoRA versions": Place(lambda engine: (engine.family.adapters, "use"), gives=False),
    "prompts": Place(lambda engine: (engine.family, "encode_prompts"), kept=True),
    "picture": Place(lambda engine: (engine.family, "encode_image")),
    "noise": Place(lambda engine: (engine.family, "noise")),
    "table": Place(lambda engine: (engine.family.blocks, "prepare"), gives=False, kept=True),
    "table's rows": Place(lambda _: (modulation, "_both"), (5,), streamed=True, kept=True),
    "load of a block": Place(
        lambda engine: (engine.family.blocks._stream, "_arrive"),  # type: ignore[attr-defined]
        (1, 3, 7),
        gives=False,
        streamed=True,
    ),
    "block": Place(block(3), (1, 2, 4)),
    "first block": Place(block(0), (1, 3), once=True),
    "seventh block": Place(block(6), (2, 4), once=True),
    "last block": Place(block(7), (1, 3), once=True),
    "velocity": Place(lambda _: (denoising, "guided"), (1, 2), spared=False),
    "decode": Place(lambda engine: (engine.family, "decode")),
    "finish": Place(lambda _: (pipeline, "picture_of"), spared=False, gives=False),
}
QUICK = {("block", 2, ONCE), ("block", 4, ALWAYS), ("decode", 1, ONCE), ("load of a block", 3, ONCE)}

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine.load(load_base(DEMO), DEVICE, request.param, resident_blocks=4)


@pytest.fixture(scope="module")
def expected(engine: Engine) -> np.ndarray[Any, Any]:
    return pixels(list(run(engine)))


def run(engine: Engine, loras: tuple[Path, ...] = ()) -> Iterator[Event]:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (SIZE[1], SIZE[0], 3), dtype=np.uint8), "RGB")
    request = replace(REQUEST, loras=tuple(LoraRef(path.name) for path in loras))
    return engine.run(request, picture, (0, 0, *SIZE), list(loras))


def forget(engine: Engine) -> None:
    """Let the next run compute all anew."""
    engine._prompts.clear()
    if isinstance(engine.family.blocks, StreamedBlocks):
        engine.family.blocks._tables._tables.clear()


def pixels(events: list[Event]) -> np.ndarray[Any, Any]:
    decoded = events[-1]
    assert isinstance(decoded, Decoded)
    return np.asarray(decoded.image)


def held(engine: Engine) -> int:
    """Return the bytes of tensors that are alive: on a card as its allocator counts them."""
    release(engine.family.device)
    if DEVICE == "cuda":
        return torch.cuda.memory_allocated()
    gc.collect()
    alive = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in gc.get_objects()
        if type(each) in (torch.Tensor, torch.nn.Parameter) and each.device.type == "cpu"
    }
    return sum(alive.values())


def no_numbers(value: Any) -> Any:
    """Return what a call gave with every number overflowed."""
    if isinstance(value, torch.Tensor):
        return value * torch.nan
    if isinstance(value, list | tuple):
        return type(value)(map(no_numbers, value))
    if is_dataclass(value):
        return replace(value, tokens=no_numbers(value.tokens))  # type: ignore[type-var,call-arg,attr-defined]
    assert isinstance(value, Generator)
    return overflowing(value)


def overflowing(work: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return no_numbers((yield from work))


def breaking(owner: Any, name: str, at: int, error: Exception | None, times: int) -> Callable[..., Any]:
    """Return a call that raises from the one at `at` on, or without an error gives no numbers."""
    original, calls = getattr(owner, name), [0]

    def call(*args: Any, **more: Any) -> Any:
        calls[0] += 1
        if not at <= calls[0] < at + times:
            return original(*args, **more)
        if error is None:
            return no_numbers(original(*args, **more))
        raise error

    return call


def ready(engine: Engine) -> int:
    """Have as much resident as in the beginning; returns the bytes that are held."""
    if isinstance(engine.family.blocks, StreamedBlocks):
        engine.family.blocks.keep(4)
        engine.memory.resident_blocks = 4
    return held(engine)


def outcome(events: Iterator[Event]) -> tuple[list[Event], Exception | None]:
    told: list[Event] = []
    try:
        told.extend(events)
    except (RealCharError, RuntimeError) as caught:
        return told, caught.with_traceback(None)
    return told, None


def cases() -> Iterator[Any]:
    for name, place in PLACES.items():
        for at in place.at:
            for kind in (ONCE, ALWAYS, ANYTHING, NAN):
                if (kind != ONCE and (place.once or at != place.at[-1])) or (kind == NAN and not place.gives):
                    continue
                for mode in (Offload.STREAM,) if place.streamed else (Offload.RESIDENT, Offload.STREAM):
                    marks = () if (name, at, kind) in QUICK else (pytest.mark.slow,)
                    yield pytest.param(mode, name, at, kind, marks=marks)


@pytest.mark.parametrize(("engine", "place", "at", "kind"), list(cases()), indirect=["engine"])
def test_whatever_breaks_anywhere_the_next_picture_is_right(
    engine: Engine, expected: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch, place: str, at: int, kind: str
) -> None:
    before = ready(engine)
    if PLACES[place].kept:
        forget(engine)
    owner, name = PLACES[place].of(engine)
    errors = {NAN: None, ANYTHING: RuntimeError("CUDA error: no")}
    error = errors.get(kind, torch.OutOfMemoryError("CUDA out of memory"))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, breaking(owner, name, at, error, 10**6 if kind == ALWAYS else 1))
        events, failure = outcome(run(engine))
    if kind == ANYTHING:
        assert failure is error
    elif kind == NAN:
        assert isinstance(failure, ResultError) and "overflowed" in failure.message
    elif failure is not None:
        assert isinstance(failure, OutOfMemory) and failure.message.startswith("Not enough memory at stage")
        streamed = isinstance(engine.family.blocks, StreamedBlocks)
        assert kind == ALWAYS or not streamed or not PLACES[place].spared, "blocks could have been given up"
    else:
        assert np.array_equal(pixels(events), expected)
        assert any(isinstance(event, Degraded) for event in events)
    if isinstance(failure, RealCharError):
        assert failure.message.count(". ") == 0 and failure.message.endswith(".")
    events.clear()
    if error is not None:
        error.__traceback__ = None
    del failure
    assert held(engine) <= before
    assert np.array_equal(pixels(list(run(engine))), expected)


@pytest.mark.parametrize("engine", [Offload.RESIDENT, Offload.STREAM], indirect=True)
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: no")])
def test_a_version_that_breaks_halfway_is_added_whole_by_the_next_job_or_not_at_all(
    engine: Engine,
    expected: np.ndarray[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: Exception,
) -> None:
    lora = write_lora(tmp_path / "x.safetensors", engine.family.transformer, (ATTENTION, MLP, MODULATION))  # type: ignore[attr-defined]
    ready(engine)
    changed = pixels(list(run(engine, (lora,))))
    assert not np.array_equal(changed, expected)
    for after, wanted in (((lora,), changed), ((), expected)):
        assert np.array_equal(pixels(list(run(engine))), expected)
        blocks = engine.family.blocks
        original = blocks.patch

        def halfway(patches: Any, original: Any = original) -> None:
            original(dict(list(patches.items())[:2]))
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(blocks, "patch", halfway)
            _, failure = outcome(run(engine, (lora,)))
        assert isinstance(failure, OutOfMemory) if isinstance(error, torch.OutOfMemoryError) else failure is error
        assert np.array_equal(pixels(list(run(engine, after))), wanted)


def test_what_overflowed_is_not_kept_for_the_next_job() -> None:
    """The same picture and prompt, without anything being forgotten in between."""
    engine = Engine.load(load_base(DEMO), DEVICE, Offload.STREAM, resident_blocks=0)
    picture = Image.new("RGB", SIZE, "teal")
    for owner, name in ((engine.family, "encode_prompts"), (modulation, "_both")):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ResultError, match="overflowed in the"):
            patch.setattr(owner, name, breaking(owner, name, 1, None, 1))
            list(engine.run(REQUEST, picture, (0, 0, *SIZE), []))
    pixels(list(engine.run(REQUEST, picture, (0, 0, *SIZE), [])))


@pytest.mark.parametrize("engine", [Offload.RESIDENT], indirect=True)
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("error", [MemoryError("no"), RuntimeError("no")])
def test_a_finish_that_breaks_leaves_no_file_and_the_next_conversion_right(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: int, error: Exception
) -> None:
    source = tmp_path / "in.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 64, 3), dtype=np.uint8), "RGB").save(source)
    targets = {role: tmp_path / f"{role}.png" for role in ("before", "clean", "stamped")}
    options = PrepareOptions(long_edge=64)

    def events() -> Iterator[Event]:
        return engine.alone(conversion(engine, REQUEST, source, options, tmp_path, targets))

    with monkeypatch.context() as patch:
        patch.setattr(realchar.convert, "save", breaking(realchar.convert, "save", at, error, 1))
        with pytest.raises(type(error), match="no"):
            list(events())
    assert list(tmp_path.glob("*.png")) == [source]
    assert isinstance(list(events())[-1], Saved) and all(path.exists() for path in targets.values())
