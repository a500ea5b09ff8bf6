"""The line of copies that a thread adds to: order, errors where they are waited for, and streaming through it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from realchar.engine.accelerator import Accelerator, Aside, Cpu
from realchar.engine.blocks import StreamedBlocks, stream_transformer
from realchar.engine.lora import AdapterSet
from realchar.settings import HostMemory
from tests.streams import LaggingCopies, denoise, resident, write_lora
from tests.tiny import DEMO, DEVICE

FOLDER = DEMO / "transformer"

pytestmark = pytest.mark.usefixtures("two_threads")


class Card(Cpu):
    """A card on the CPU whose copies are done by who asks for them."""

    on_gpu = True


def staged(number: int, accelerator: Accelerator | None = None) -> tuple[Any, StreamedBlocks]:
    """Return a transformer whose weights pass through the staging ring: on a card, or one whose copies lag."""
    if DEVICE == "cpu" and accelerator is None:
        accelerator = LaggingCopies(lag_s=0.0005)
    device, dtype = torch.device(DEVICE), torch.float32 if DEVICE == "cpu" else torch.bfloat16
    transformer, blocks = stream_transformer(
        FOLDER, device, dtype, resident=number, accelerator=accelerator, host_memory=HostMemory.STAGING
    )
    assert blocks.choice.tier == "staging" and isinstance(blocks._stream._accelerator, Aside)
    return transformer.eval().requires_grad_(False), blocks


def whole() -> tuple[Any, Any]:
    return resident(FOLDER, torch.float32 if DEVICE == "cpu" else torch.bfloat16, DEVICE)


def test_the_caller_goes_on_while_tasks_run_in_their_order() -> None:
    line, go, done = Aside(Cpu()), threading.Event(), []
    marks = [line.submit(lambda: done.append(go.wait(10)), None)]
    marks += [line.submit(lambda i=i: done.append(i), None) for i in range(5)]
    assert done == [] and all(isinstance(mark, Future) for mark in marks)
    go.set()
    line.wait(marks[3])
    assert done[:4] == [True, 0, 1, 2]
    line.settle(marks[-1])
    assert done == [True, 0, 1, 2, 3, 4]


def test_an_error_is_raised_where_the_mark_is_waited_for_and_stops_nothing_else() -> None:
    line, done = Aside(Cpu()), []

    def fail() -> None:
        raise torch.OutOfMemoryError("no")

    broken, after = line.submit(fail, None), line.submit(lambda: done.append(1), None)
    for way in (line.wait, line.settle, line.join):
        with pytest.raises(torch.OutOfMemoryError, match="no"):
            way(broken)
        way(after)
    assert done == [1]


@pytest.mark.parametrize("number", [0, 3, 8])
def test_a_staged_run_has_the_resident_bits_also_with_versions(tmp_path: Path, number: int) -> None:
    plain, model = whole(), staged(number)
    path = write_lora(tmp_path / "x.safetensors", plain[0])
    for versions in ([], [(path, 1.0)], []):
        AdapterSet(*plain).use(versions)
        AdapterSet(*model).use(versions)
        assert torch.equal(denoise(*model), denoise(*plain))


@pytest.mark.parametrize("number", [0, 3])
def test_closing_a_staged_run_at_any_block_leaves_nothing_under_way(number: int) -> None:
    transformer, blocks = staged(number)
    expected = denoise(*whole())
    for stop in range(1, 9):
        denoise(transformer, blocks, stop_after=stop)
        under_way = [slot.ready for slot in blocks._stream._slots] + list(blocks._stream._arriving.values())
        assert all(mark is None or mark.done() for mark in under_way)  # type: ignore[union-attr]
        if stop % 3 == 0:
            blocks.keep(8 - stop)
        assert torch.equal(denoise(transformer, blocks), expected), stop


@pytest.mark.parametrize("number", [0, 2])
def test_staged_copies_that_fail_are_told_once_and_done_again(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    model = staged(number, Card() if DEVICE == "cpu" else None)
    stream, expected = model[1]._stream, denoise(*whole())
    original = stream._arrive
    for at in range(1, 8):
        calls = [0]

        def arrive(*load: Any, calls: list[int] = calls, at: int = at) -> None:
            calls[0] += 1
            if calls[0] in (at, at + 1):  # the copy that is waited for, and the one under way behind it
                raise torch.OutOfMemoryError("no")
            original(*load)

        stream.keep(0)
        stream.keep(number)
        stream.patch({})
        with monkeypatch.context() as patch:
            patch.setattr(stream, "_arrive", arrive)
            with pytest.raises(torch.OutOfMemoryError):
                denoise(*model)
            assert torch.equal(denoise(*model), expected), at


def test_a_copy_that_fails_after_the_last_step_is_done_again_before_the_next_run() -> None:
    _, blocks = staged(0)
    stream = blocks._stream
    with closing(blocks.step()) as ready:
        for _ in ready:
            pass
    failed: Future[Any] = Future()
    failed.set_exception(torch.OutOfMemoryError("no"))
    assert stream._slots[0].held is not None
    stream._slots[0].ready = failed
    blocks.keep(1)
    assert stream._slots[0].held is None and stream._slots[0].ready is None
