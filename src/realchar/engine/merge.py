"""What LoRA versions add to weights, and the one way in which it is added.

Sources of the products: LoRA (arXiv 2106.09685), LoHa (FedPara, 2108.06098), LoKr (LyCORIS, 2309.14859), DoRA (2402.09353).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

SLAB = 1 << 22  # numbers of a weight that are summed together: 16 MB of float32, whatever the size of the weight


@dataclass(frozen=True, eq=False)
class Patch:
    """One file's addition to one weight; `origin` tells files apart. Waits on the host.

    kind: lora, loha or lokr, whose factors make a product; diff, which is added; set, which replaces. `scale` counts for
    the product, `strength` for all that it changes. Where there is a `magnitude`, rows (n,) or columns (1, n) of the sum
    get these lengths (DoRA).
    """

    kind: str
    tensors: Mapping[str, Tensor]
    scale: float
    strength: float
    origin: Hashable

    def to(self, device: torch.device) -> Patch:
        return self.having({part: tensor.to(device) for part, tensor in self.tensors.items()})

    def having(self, tensors: Mapping[str, Tensor]) -> Patch:
        """Return the same patch with its tensors somewhere else."""
        return replace(self, tensors=tensors)


Patches = Mapping[str, Sequence[Patch]]  # by the weight's full name, in the order in which they are added


def set_patched(weight: Tensor, pristine: Tensor, patches: Sequence[Patch]) -> None:
    """Make a weight (out, in) or (n,) equal `pristine` + patches: summed in float32, rounded once, whatever the dtypes.

    All on one device; `pristine` may be the weight itself, and is not kept.
    """
    if len(patches) == 1 and weight.dtype == pristine.dtype and _is_plain(patches[0], weight.dtype):
        # The matrix product itself sums in float32 and rounds once, with a fifth of the memory traffic.
        if pristine is not weight:
            weight.copy_(pristine)
        tensors = patches[0].tensors
        weight.addmm_(tensors["up"], tensors["down"], alpha=patches[0].scale * patches[0].strength)
        return
    weight, pristine = (x.view(x.shape[0], -1) for x in (weight, pristine))  # a bias is one column
    lengths = [_column_lengths(pristine, patch) for patch in patches]
    for start, stop in _slabs(weight):
        before = pristine[start:stop].float()
        total = before.clone()
        for patch, columns in zip(patches, lengths, strict=True):
            added = _added(patch, before, start, stop, columns)
            total.add_(added, alpha=patch.strength)
        weight[start:stop] = total


def _is_plain(patch: Patch, dtype: torch.dtype) -> bool:
    return patch.tensors.keys() == {"up", "down"} and all(x.dtype == dtype for x in patch.tensors.values())


def _slabs(weight: Tensor) -> list[tuple[int, int]]:
    step = max(1, SLAB // max(1, weight.shape[1]))
    return [(start, min(start + step, len(weight))) for start in range(0, len(weight), step)]


def _added(patch: Patch, before: Tensor, start: int, stop: int, columns: Tensor | None) -> Tensor:
    """Return what a patch of strength 1 adds to some rows (n, in)."""
    if patch.kind == "set":
        return patch.tensors["value"][start:stop].float().view_as(before) - before
    added = patch.scale * _PRODUCTS[patch.kind](patch.tensors, start, stop)
    magnitude = patch.tensors.get("magnitude")
    if magnitude is None:
        return added.view_as(before)
    moved = before + added
    if columns is None:
        length = moved.norm(dim=1, keepdim=True)
        magnitude = magnitude.view(-1, 1)[start:stop]
    else:
        length = columns
    scaled: Tensor = moved * (magnitude.float() / length.clamp(min=torch.finfo(torch.float32).tiny))
    return scaled - before


def _column_lengths(pristine: Tensor, patch: Patch) -> Tensor | None:
    """Return the lengths (1, in) of the columns of pristine + product where a magnitude asks for them."""
    magnitude = patch.tensors.get("magnitude")
    if magnitude is None or magnitude.ndim != 2 or magnitude.shape != (1, pristine.shape[1]):
        return None
    squares = torch.zeros(1, pristine.shape[1], device=pristine.device)
    for start, stop in _slabs(pristine):
        product = _PRODUCTS[patch.kind](patch.tensors, start, stop)
        squares += (pristine[start:stop].float() + patch.scale * product).square().sum(0, keepdim=True)
    return squares.sqrt()


# ---- products: rows `start` to `stop` of what factors make, float32

_Factors = Mapping[str, Tensor]


def _lora(factors: _Factors, start: int, stop: int) -> Tensor:
    up, down = factors["up"][start:stop].float(), factors["down"].float()
    mid = factors.get("mid")
    return up @ down if mid is None else up @ mid.float() @ down


def _loha(factors: _Factors, start: int, stop: int) -> Tensor:
    rows = torch.arange(start, stop, device=factors["w1_a"].device)
    return _factor(factors, "1", rows) * _factor(factors, "2", rows)


def _lokr(factors: _Factors, start: int, stop: int) -> Tensor:
    """Return rows of the Kronecker product: row i of the first times row j of the second stand at i * b + j."""
    number = _height(factors, "2")
    rows = torch.arange(start, stop, device=next(iter(factors.values())).device)
    first = _factor(factors, "1", torch.div(rows, number, rounding_mode="floor"))
    second = _factor(factors, "2", rows % number)
    return torch.einsum("nc,nd->ncd", first, second).flatten(1)


def _diff(factors: _Factors, start: int, stop: int) -> Tensor:
    return factors["value"][start:stop].float()


def _height(factors: _Factors, i: str) -> int:
    if f"w{i}" in factors:
        return len(factors[f"w{i}"])
    return factors[f"w{i}_a"].shape[-1 if f"t{i}" in factors else 0]


def _factor(factors: _Factors, i: str, rows: Tensor) -> Tensor:
    """Return rows of the first or second factor, which may itself be a product of two or, with a core, of three."""
    if f"w{i}" in factors:
        return factors[f"w{i}"][rows].float()
    a, b, core = factors[f"w{i}_a"], factors[f"w{i}_b"].float(), factors.get(f"t{i}")
    return a[rows].float() @ b if core is None else a.T[rows].float() @ core.float() @ b


_PRODUCTS: dict[str, Callable[[_Factors, int, int], Tensor]] = {
    "lora": _lora,
    "loha": _loha,
    "lokr": _lokr,
    "diff": _diff,
}
