"""Branches side by side: the same bits as one after the other, torch's state of each thread, and what tasks raise."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from realchar.engine.abreast import abreast
from realchar.engine.denoise import Branch
from realchar.engine.families.qwen_image_edit import QwenImageEdit
from tests.tiny import DEMO

CPU = torch.device("cpu")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def seen(tasks: int, look: Callable[[], object], device: torch.device = CPU, rounds: int = 1) -> list[object]:
    """Return what `look` says in each task of the last round, in order; every task waits for the others of its round."""
    found: dict[int, object] = {}
    with abreast(tasks, device) as run:
        for _ in range(rounds):
            meet = threading.Barrier(tasks)
            run([lambda i=i, meet=meet: (meet.wait(20), found.update({i: look()})) for i in range(tasks)])  # type: ignore[misc]
    return [found[i] for i in range(tasks)]


def own_thread(tasks: int, device: torch.device = CPU) -> list[bool]:
    """Return whether each of some tasks ran in a thread other than the caller's."""
    found: list[bool] = []
    caller = threading.get_ident()
    with abreast(tasks, device) as run:
        run([lambda: found.append(threading.get_ident() != caller)] * tasks)
    return found


def in_new_thread(look: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(look()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize(("cores", "tasks", "share"), [(2, 2, 1), (4, 2, 2), (5, 2, 2), (3, 3, 1), (6, 3, 2)])
def test_every_task_has_its_share_of_the_threads_and_all_are_given_back(
    threads: Callable[[int], None], cores: int, tasks: int, share: int
) -> None:
    threads(cores)
    assert seen(tasks, torch.get_num_threads, rounds=3) == [share] * tasks
    assert torch.get_num_threads() == cores
    assert in_new_thread(torch.get_num_threads) == cores


def test_one_core_one_branch_and_cards_start_no_thread(threads: Callable[[int], None]) -> None:
    threads(2)
    assert sorted(own_thread(2)) == [False, True]
    assert own_thread(1) == [False]
    assert own_thread(2, torch.device("cuda")) == [False, False]
    threads(1)
    assert own_thread(2) == [False, False]


@pytest.mark.parametrize(("cores", "tasks"), [(2, 4), (2, 8), (3, 9)])
def test_more_branches_than_cores_share_them(threads: Callable[[int], None], cores: int, tasks: int) -> None:
    threads(cores)
    meet = threading.Barrier(cores)  # so many at a time, or nobody gets through
    found: list[tuple[int, int]] = []

    def task() -> None:
        meet.wait(20)
        found.append((threading.get_ident(), torch.get_num_threads()))

    with abreast(tasks, CPU) as run:
        for _ in range(3):
            run([task] * tasks)
    assert len(found) == 3 * tasks and {share for _, share in found} == {1}
    assert len({thread for thread, _ in found}) == cores
    assert torch.get_num_threads() == cores


def test_modes_are_those_of_the_caller(threads: Callable[[int], None]) -> None:
    threads(2)

    def modes() -> tuple[bool, bool, bool, torch.dtype]:
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        return (
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            product.dtype,
        )

    plain = (False, True, False, torch.float32)
    assert seen(2, modes) == [plain, plain]
    with torch.inference_mode():
        assert seen(2, modes) == [(True, False, False, torch.float32)] * 2
    with torch.no_grad():
        assert seen(2, modes) == [(False, False, False, torch.float32)] * 2
    with torch.autocast("cpu", torch.bfloat16):
        assert seen(2, modes) == [(False, True, True, torch.bfloat16)] * 2
    assert modes() == plain


@pytest.mark.parametrize("failing", [(0,), (1,), (2,), (1, 2), (0, 2)])
def test_the_first_error_comes_out_as_it_is_and_nothing_is_left(
    threads: Callable[[int], None], failing: tuple[int, ...]
) -> None:
    threads(3)
    errors = [torch.OutOfMemoryError("no"), KeyboardInterrupt("stop"), RuntimeError("none")]
    ended: list[int] = []

    def task(i: int) -> None:
        if i in failing:
            raise errors[i]
        ended.append(i)

    with pytest.raises(type(errors[failing[0]])) as caught, abreast(3, CPU) as run:
        run([lambda i=i: task(i) for i in range(3)])  # type: ignore[misc]
    assert caught.value is errors[failing[0]]
    assert sorted(ended + list(failing)) == [0, 1, 2]
    assert torch.get_num_threads() == 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("branch")]


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_that_is_dropped_frees_its_tensors_at_once(threads: Callable[[int], None], failing: int) -> None:
    threads(2)
    kept: list[weakref.ref[Tensor]] = []

    def fail() -> None:
        large = torch.zeros(8)
        kept.append(weakref.ref(large))
        raise RuntimeError("no")

    def attempt() -> None:
        with abreast(2, CPU) as run:
            run([fail if i == failing else lambda: None for i in range(2)])

    gc.disable()
    try:
        with contextlib.suppress(RuntimeError):
            attempt()
        assert kept[0]() is None
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def family() -> QwenImageEdit:
    return QwenImageEdit.load(DEMO, CPU, torch.float32)


@pytest.fixture
def branches(family: QwenImageEdit) -> list[Branch]:
    generator = torch.Generator().manual_seed(0)
    width = family.transformer.config.joint_attention_dim
    shape = (1, 6, 5)
    tokens = [family.noise(shape, seed) for seed in (1, 2)]
    prompts = [torch.randn(1, length, width, generator=generator) for length in (40, 57)]
    return [Branch(tokens[0], tokens[1], prompt, torch.tensor([0.6]), (shape, shape)) for prompt in prompts]


@torch.inference_mode()
def forward(family: QwenImageEdit, branches: list[Branch]) -> list[Tensor]:
    blocks = family.velocities(branches)
    while True:
        try:
            next(blocks)
        except StopIteration as end:
            velocities: list[Tensor] = end.value
            return velocities


def test_branches_keep_their_order_and_equal_one_after_the_other_bit_for_bit(
    threads: Callable[[int], None], family: QwenImageEdit, branches: list[Branch]
) -> None:
    threads(1)
    alone = [forward(family, [branch])[0] for branch in branches]
    assert not torch.equal(alone[0], alone[1])
    threads(2)
    for _ in range(3):
        both = forward(family, branches)
        assert all(torch.equal(a, b) for a, b in zip(alone, both, strict=True))
    swapped = forward(family, branches[::-1])
    assert torch.equal(swapped[0], alone[1]) and torch.equal(swapped[1], alone[0])


def test_an_error_in_the_second_branch_ends_the_step(
    threads: Callable[[int], None], family: QwenImageEdit, branches: list[Branch], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads(2)
    long = replace(branches[1], prompt_embeds=branches[1].prompt_embeds[:, :3])
    block = family.transformer.transformer_blocks[3]
    original, error = block.forward, torch.OutOfMemoryError("no")

    def fail_for_three_tokens(**inputs: Tensor) -> tuple[Tensor, Tensor]:
        if inputs["encoder_hidden_states"].shape[1] == 3:
            raise error
        return original(**inputs)  # type: ignore[no-any-return]

    monkeypatch.setattr(block, "forward", fail_for_three_tokens)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        forward(family, [branches[0], long])
    assert caught.value is error and torch.get_num_threads() == 2


def test_closing_between_blocks_ends_the_threads(
    threads: Callable[[int], None], family: QwenImageEdit, branches: list[Branch]
) -> None:
    threads(2)
    blocks = family.velocities(branches)
    with torch.inference_mode():
        next(blocks)
    assert torch.get_num_threads() == 2  # the caller has all of them between the blocks
    assert [thread for thread in threading.enumerate() if thread.name.startswith("branch")]
    blocks.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("branch")]
