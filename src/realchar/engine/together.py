"""Several runs in one denoising loop: their next steps are taken together, block by block.

A run is a generator that yields events, and an `Ask` where it needs velocities, which are sent to it. So a run knows
nothing of others; runs join and leave between steps, and one that is alone is no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from realchar.engine.denoise import Branch
from realchar.engine.devices import release
from realchar.engine.families.base import ModelFamily
from realchar.engine.ladder import with_fewer_blocks
from realchar.engine.work import ticking
from realchar.errors import OutOfMemory
from realchar.schema import Degraded, Ended, Event

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Ask:
    """What a run needs next: the velocities of these branches, each (1, T, C), sent to it as a list."""

    branches: list[Branch]


Work = Generator[Event | Ask, Any, T]
Make = Callable[[], Work[Any]]  # begins a run, anew each time


class Owner(Protocol):
    """Who has a family of models."""

    @property
    def family(self) -> ModelFamily: ...


class Together(Generic[K]):
    """A loop over runs, each under a key of its own, up to `width` at a time."""

    def __init__(self, owner: Owner, more: Callable[[], tuple[K, Make] | None], width: int = 1) -> None:
        """`owner` has the family, at the latest when a run asks for something; `more` is asked for another run between steps, as long as there is room for one; None: not now.

        `width` may be set at any time. A run for which memory is too short beside others is begun again when it can be alone.
        """
        self.width = width
        self._owner = owner
        self._more = more
        self._makes: dict[K, Make] = {}
        self._set_aside: list[K] = []
        self._lonely: set[K] = set()  # those beside which memory was too short once
        self._works: dict[K, Work[Any]] = {}
        self._asks: dict[K, Ask] = {}

    def drop(self, key: K) -> None:
        """Close one run, in the middle of a step even; the others don't notice."""
        self._asks.pop(key, None)
        if key in self._set_aside:
            self._set_aside.remove(key)
        work = self._works.pop(key, None)
        if work is not None:
            work.close()

    def run(self) -> Generator[tuple[K, Event | Ended], None, None]:
        """Yield every run's events and its end, until there is none any more. Closing it closes all, within one block."""
        try:
            while True:
                yield from self._begin_more()
                if not self._asks:
                    return
                waiting = list(self._asks)
                for start in range(0, len(waiting), self.width):
                    yield from self._step([key for key in waiting[start : start + self.width] if key in self._asks])
        finally:
            for key in [*self._works, *self._set_aside]:
                self.drop(key)

    def _begin_more(self) -> Iterator[tuple[K, Event | Ended]]:
        while len(self._works) < self.width:
            if self._works and (self._set_aside or not self._lonely.isdisjoint(self._works)):
                return  # nobody joins while one is to be alone, or is
            if self._set_aside:
                key = self._set_aside.pop(0)
            elif (new := self._more()) is not None:
                key, self._makes[new[0]] = new
            else:
                return
            self._works[key] = work = self._makes[key]()
            yield from self._advance(key, partial(next, work))

    def _advance(self, key: K, resume: Callable[[], Event | Ask]) -> Iterator[tuple[K, Event | Ended]]:
        """Let a run go on until it asks, or ends."""
        work = self._works[key]
        try:
            said = resume()
            while not isinstance(said, Ask):
                yield key, said
                if key not in self._works:
                    return
                said = next(work)
        except StopIteration as end:
            ended = Ended(end.value)
        except Exception as error:
            ended = Ended(error=error)
        else:
            self._asks[key] = said
            return
        self._works.pop(key, None)
        if isinstance(ended.error, OutOfMemory) and self._works:
            self._set_aside.append(key)
            self._lonely.add(key)
            yield key, Degraded("alone", {}, "this picture is made anew, alone, once those beside it are done")
        else:
            yield key, ended

    def _step(self, keys: list[K]) -> Iterator[tuple[K, Event | Ended]]:
        """Take one step of each of these runs; where memory is too short for all, in halves, from now on."""
        if not keys:
            return
        failure: Exception | None = None
        velocities: dict[K, list[Tensor]] = {}
        attempt = partial(self._velocities, keys)
        try:
            if len(keys) == 1:
                velocities = yield from self._told(
                    keys, with_fewer_blocks(attempt, self._owner.family.blocks, self._owner.family.device)
                )
            else:
                velocities = yield from self._told(keys, attempt())
        except torch.OutOfMemoryError as error:
            failure = torch.OutOfMemoryError(str(error))  # without the frames, which keep the tensors alive
        except Exception as error:
            failure = error
        if isinstance(failure, torch.OutOfMemoryError) and len(keys) > 1:
            yield from self._in_halves(keys)
            return
        for key in keys:
            if self._asks.pop(key, None) is not None:
                work = self._works[key]
                answer = partial(work.send, velocities.get(key)) if failure is None else partial(work.throw, failure)
                yield from self._advance(key, answer)

    def _in_halves(self, keys: list[K]) -> Iterator[tuple[K, Event | Ended]]:
        release(self._owner.family.device)
        self.width = len(keys) // 2
        text = (
            f"at most {self.width} pictures are now made together"
            if self.width > 1
            else "one picture is made at a time"
        )
        for key in keys:
            if key in self._works:
                yield key, Degraded("together", {"width": self.width}, text)
        for start in range(0, len(keys), self.width):
            yield from self._step([key for key in keys[start : start + self.width] if key in self._asks])

    def _velocities(self, keys: list[K]) -> Generator[Event, None, dict[K, list[Tensor]]]:
        """Return the velocities of all branches, by run; of runs that are dropped meanwhile none."""
        owners = [key for key in keys for _ in self._asks[key].branches]
        branches = [branch for key in keys for branch in self._asks[key].branches]
        found = yield from ticking(self._owner.family.velocities(branches, lambda i: owners[i] in self._works))
        velocities: dict[K, list[Tensor]] = {}
        for key, velocity in zip(owners, found, strict=True):
            if velocity is not None:
                velocities.setdefault(key, []).append(velocity)
        return velocities

    def _told(
        self, keys: list[K], events: Generator[Event, None, dict[K, list[Tensor]]]
    ) -> Generator[tuple[K, Event], None, dict[K, list[Tensor]]]:
        """Tell each event to all these runs; ends early where none of them is left."""
        with closing(events):
            while any(key in self._works for key in keys):
                try:
                    event = next(events)
                except StopIteration as end:
                    found: dict[K, list[Tensor]] = end.value
                    return found
                for key in keys:
                    if key in self._works:
                        yield key, event
        return {}
