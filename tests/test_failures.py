"""Memory that runs out, or anything else that breaks, at every place of a run: the job ends with a sentence or its picture,
nothing stays on the device, and the next picture is right."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from realchar.catalog import load_base
from realchar.engine.blocks import StreamedBlocks
from realchar.engine.devices import release
from realchar.engine.pipeline import Engine
from realchar.errors import OutOfMemory, RealCharError
from realchar.schema import Decoded, Degraded, EditRequest, Event
from realchar.settings import Offload
from tests.tiny import DEMO, DEVICE

SIZE = (64, 32)
REQUEST = EditRequest(prompt="Photo.", steps=2, cfg=3.0, seed=1)
MODES = [Offload.RESIDENT, Offload.STREAM]
# Place in the engine, and at which of its calls in a run.
PLACES: dict[str, tuple[Callable[[Engine], tuple[Any, str]], tuple[int, ...]]] = {
    "LoRA versions": (lambda engine: (engine.family.adapters, "use"), (1,)),
    "prompts": (lambda engine: (engine.family, "encode_prompts"), (1,)),
    "picture": (lambda engine: (engine.family, "encode_image"), (1,)),
    "table": (lambda engine: (engine.family.blocks, "prepare"), (1,)),
    "block": (lambda engine: (engine.family.transformer.transformer_blocks[3], "forward"), (1, 2, 4)),  # type: ignore[attr-defined]
    "last block": (lambda engine: (engine.family.transformer.transformer_blocks[7], "forward"), (1, 3)),  # type: ignore[attr-defined]
    "decode": (lambda engine: (engine.family, "decode"), (1,)),
}

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(scope="module", params=MODES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine.load(load_base(DEMO), DEVICE, request.param, resident_blocks=4)


@pytest.fixture(scope="module")
def expected(engine: Engine) -> np.ndarray[Any, Any]:
    return pixels(list(run(engine)))


def run(engine: Engine) -> Iterator[Event]:
    engine._prompts.clear()
    if isinstance(engine.family.blocks, StreamedBlocks):
        engine.family.blocks._tables._tables.clear()
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (SIZE[1], SIZE[0], 3), dtype=np.uint8), "RGB")
    return engine.run(REQUEST, picture, (0, 0, *SIZE), [])


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


def breaking(owner: Any, name: str, at: int, error: Exception, times: int) -> Callable[..., Any]:
    original, calls = getattr(owner, name), [0]

    def call(*args: Any, **more: Any) -> Any:
        calls[0] += 1
        if at <= calls[0] < at + times:
            raise error
        return original(*args, **more)

    return call


@pytest.mark.parametrize(
    ("place", "at", "kind"),
    [
        (name, at, kind)
        for name, (_, calls) in PLACES.items()
        for at in calls
        for kind in ("memory, once", "memory, always", "anything")
        if at == calls[-1] or kind == "memory, once"
    ],
)
def test_whatever_breaks_anywhere_the_next_picture_is_right(
    engine: Engine, expected: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch, place: str, at: int, kind: str
) -> None:
    if isinstance(engine.family.blocks, StreamedBlocks):
        engine.family.blocks.keep(4)
        engine.memory.resident_blocks = 4
    engine._prompts.clear()
    before = held(engine)
    owner, name = PLACES[place][0](engine)
    error = RuntimeError("CUDA error: no") if kind == "anything" else torch.OutOfMemoryError("CUDA out of memory")
    events: list[Event] = []
    failure: Exception | None = None
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, breaking(owner, name, at, error, 1 if kind == "memory, once" else 10**6))
        try:
            events.extend(run(engine))
        except (RealCharError, RuntimeError) as caught:
            failure = caught.with_traceback(None)
    if kind == "anything":
        assert failure is error
    elif failure is not None:
        assert isinstance(failure, OutOfMemory) and failure.message.startswith("Not enough memory at stage")
        assert failure.message.count(". ") == 0
        streamed = isinstance(engine.family.blocks, StreamedBlocks)
        assert kind == "memory, always" or not streamed, "blocks could have been given up"
    else:
        assert np.array_equal(pixels(events), expected)
        assert any(isinstance(event, Degraded) for event in events)
    events.clear()
    error.__traceback__ = None
    del failure
    engine._prompts.clear()
    assert held(engine) <= before
    assert np.array_equal(pixels(list(run(engine))), expected)
