"""Branches side by side on the CPU: as many at a time as there are cores, each on its share of torch's threads.

Two threads of torch that share one operation meet at its end, thousands of times a step, and the engine's sleep while
they wait (`realchar.machine` says why). Branches that each have a core of their own meet once a block: 0.24 s a step on
two cores instead of 0.42 s, and nothing spins. Whether they run so depends on the device and the number of cores only,
never on the load, so a seed keeps its picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial

import torch

Task = Callable[[], None]
Run = Callable[[Sequence[Task]], None]


@contextmanager
def abreast(count: int, device: torch.device) -> Iterator[Run]:
    """Give a function that runs up to `count` tasks and returns when all have ended; its threads end with the context.

    On the CPU tasks run side by side, as many at a time as there are cores that torch may use (affinity and
    `OMP_NUM_THREADS` count); elsewhere one after the other. What a task raises comes out as it is, the first in order if
    several do, once no task is running any more; those that were to follow it on its core are left out.
    """
    threads = torch.get_num_threads()
    lanes = min(count, threads)
    if device.type != "cpu" or lanes < 2:
        yield _one_after_the_other
        return
    with ThreadPoolExecutor(lanes - 1, thread_name_prefix="branch") as pool:
        yield partial(_in_lanes, pool, lanes, threads // lanes)


def _one_after_the_other(tasks: Sequence[Task]) -> None:
    for task in tasks:
        task()


def _in_lanes(pool: ThreadPoolExecutor, lanes: int, share: int, tasks: Sequence[Task]) -> None:
    _side_by_side(pool, share, [partial(_one_after_the_other, tasks[i::lanes]) for i in range(min(lanes, len(tasks)))])


def _side_by_side(pool: ThreadPoolExecutor, share: int, tasks: Sequence[Task]) -> None:
    before = torch.get_num_threads()
    caller = _modes()
    futures = [pool.submit(_in_worker, task, share, caller) for task in tasks[1:]]
    try:
        torch.set_num_threads(share)
        tasks[0]()
    finally:
        wait(futures)
        # A thread's count is its own, but new threads take the one that was set last, by any thread: so this is last.
        torch.set_num_threads(before)
    while futures:  # emptied, so that an error and its future don't keep each other, and its tensors, alive
        futures.pop(0).result()


def _modes() -> tuple[bool, bool, bool, torch.dtype]:
    """Return this thread's inference mode, grad mode, and the CPU's autocast with its dtype."""
    return (
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )


def _in_worker(task: Task, share: int, caller: tuple[bool, bool, bool, torch.dtype]) -> None:
    """Run `task` in the modes of the thread that handed it over: torch keeps them, and its count, for each thread."""
    inference, grad, autocast, dtype = caller
    torch.set_num_threads(share)
    with (
        torch.inference_mode(inference),
        torch.set_grad_enabled(grad),
        torch.autocast("cpu", dtype, enabled=autocast),
    ):
        task()
