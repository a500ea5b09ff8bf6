"""Work that can be left: generators that yield between its pieces, so that a run ends where it is closed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

import torch

from realchar.schema import Event, Tick

T = TypeVar("T")


def ticking(work: Generator[None, None, T]) -> Generator[Event, None, T]:
    """Run `work` in inference mode with a `Tick` at each of its yields; the mode is left there, as it is per thread."""
    with closing(work):
        while True:
            with torch.inference_mode():
                try:
                    next(work)
                except StopIteration as end:
                    result: T = end.value
                    return result
            yield Tick()


def result_of(work: Generator[None, None, T]) -> T:
    """Run `work` to its end and return its result, in the modes of the caller."""
    with closing(work):
        while True:
            try:
                next(work)
            except StopIteration as end:
                result: T = end.value
                return result
