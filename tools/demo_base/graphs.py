"""CUDA graphs for training steps: the models here are so small that a GPU would wait for Python."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor


class StepGraphs:
    """Runs steps by kind; on a GPU a kind's first step plainly, then as a recorded graph.

    The plain step lets caches fill, kernels be chosen and compiled code be made, none of which can be recorded. A step
    must read its input from buffers that stay, since a replay reads the same addresses.
    """

    def __init__(self, device: torch.device) -> None:
        self.on = device.type == "cuda"
        self.pool = torch.cuda.graph_pool_handle() if self.on else None
        self.warm: set[Hashable] = set()
        self.recorded: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def run(self, kind: Hashable, step: Callable[[], Tensor]) -> Tensor:
        """Take a step and return what it returns; a recorded step returns the same tensor each time."""
        if not self.on:
            return step()
        if kind not in self.warm:
            self.warm.add(kind)
            return self._plainly(step)
        if kind not in self.recorded:
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=self.pool):
                output = step()
            self.recorded[kind] = graph, output
        graph, output = self.recorded[kind]
        graph.replay()
        return output

    def _plainly(self, step: Callable[[], Tensor]) -> Tensor:
        """Run on a side stream, as recording does."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            output = step()
        torch.cuda.current_stream().wait_stream(side)
        return output
