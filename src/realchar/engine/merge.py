"""What LoRA versions add to weights, and the one way in which it is added."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Patch:
    """One file's addition to one weight: `alpha * up @ down`; `origin` tells files apart. Waits on the host."""

    up: Tensor  # (out, rank)
    down: Tensor  # (rank, in)
    alpha: float
    origin: Hashable

    def to(self, device: torch.device) -> Patch:
        return replace(self, up=self.up.to(device), down=self.down.to(device))


Patches = Mapping[str, Sequence[Patch]]  # by the weight's full name, in the order in which they are added


def set_patched(weight: Tensor, pristine: Tensor, patches: Sequence[Patch]) -> None:
    """Make a weight (out, in) equal `pristine` + patches: summed in float32 and rounded once, whatever the dtypes.

    All on one device; `pristine` may be the weight itself, and is not kept.
    """
    if len(patches) == 1 and weight.dtype == pristine.dtype == patches[0].up.dtype == patches[0].down.dtype:
        # The matrix product itself sums in float32 and rounds once, with a fifth of the memory traffic.
        if pristine is not weight:
            weight.copy_(pristine)
        weight.addmm_(patches[0].up, patches[0].down, alpha=patches[0].alpha)
        return
    total = pristine.float()
    for patch in patches:
        total.addmm_(patch.up.float(), patch.down.float(), alpha=patch.alpha)
    if total is not weight:
        weight.copy_(total)
