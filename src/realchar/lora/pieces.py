"""What a LoRA file adds to one module, checked against the module's shape. Shapes only, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from realchar.headers import Row

Shape = tuple[int, ...]


class Misfit(Exception):
    """Factors are of another shape than the module asks for; says which."""


class Lacking(Misfit):
    """A factor is missing."""


@dataclass(frozen=True)
class Piece:
    """Factors for one module: `keys` by part, `scale` as a product counts (without a user's strength).

    kind: lora, loha, lokr or full; rank: None where the factors have none.
    """

    module: str
    kind: str
    keys: Mapping[str, str]
    scale: float = 1.0
    rank: int | None = None


def plain(shape: Shape) -> Shape:
    """Return a shape without the sides of a 1×1 convolution, in whose form some trainers write."""
    return shape[:2] if len(shape) > 2 and set(shape[2:]) == {1} else shape


def rank_of(kind: str, rows: Mapping[str, Row], module: Shape) -> int | None:
    """Return the rank of factors, after checking that they make an addition of the module's shape. Raises Misfit."""
    shapes = {part: plain(row.shape) for part, row in rows.items()}
    rank = _CHECKS[kind](shapes, module)
    magnitude = shapes.get("magnitude")
    if magnitude is not None and (
        len(module) != 2 or prod(magnitude) not in module or max(magnitude) != prod(magnitude)
    ):
        raise Misfit(f"a magnitude of {_written(magnitude)} on a weight of {_written(module)}")
    return rank


def _lora(shapes: Mapping[str, Shape], module: Shape) -> int:
    up, down, mid = _needed(shapes, "up"), _needed(shapes, "down"), shapes.get("mid")
    rank = down[0] if down else 0
    if len(module) != 2 or up != (module[0], rank) or down != (rank, module[1]) or mid not in (None, (rank, rank)):
        raise Misfit(f"factors {_written(up)} and {_written(down)} on a weight of {_written(module)}")
    return rank


def _loha(shapes: Mapping[str, Shape], module: Shape) -> int:
    rank = 0
    for i in ("1", "2"):
        a, b, t = _needed(shapes, f"w{i}_a"), _needed(shapes, f"w{i}_b"), shapes.get(f"t{i}")
        rank = b[0] if b else 0
        inner = (rank, module[0]) if t is not None else (module[0], rank)
        if len(module) != 2 or a != inner or b != (rank, module[1]) or t not in (None, (rank, rank)):
            raise Misfit(f"factors {_written(a)} and {_written(b)} on a weight of {_written(module)}")
    return rank


def _lokr(shapes: Mapping[str, Shape], module: Shape) -> int | None:
    sides: list[Shape] = []
    rank = None
    for i in ("1", "2"):
        whole, t = shapes.get(f"w{i}"), shapes.get(f"t{i}")
        if whole is None:
            a, b = _needed(shapes, f"w{i}_a"), _needed(shapes, f"w{i}_b")
            rank = b[0] if b else 0
            out, fits = (a[-1], a[0] == rank == t[0] == t[-1]) if a and t else (a[0] if a else 0, a[-1:] == (rank,))
            if len(a) != 2 or len(b) != 2 or not fits:
                raise Misfit(f"factors {_written(a)} and {_written(b)} that can't be multiplied")
            whole = (out, b[1])
        sides.append(whole)
    if [len(side) for side in sides] != [2, 2] or module != (sides[0][0] * sides[1][0], sides[0][1] * sides[1][1]):
        raise Misfit(f"factors {_written(sides[0])} and {_written(sides[1])} on a weight of {_written(module)}")
    return rank


def _full(shapes: Mapping[str, Shape], module: Shape) -> None:
    for part in ("diff", "set"):
        if part in shapes and shapes[part] != module:
            raise Misfit(f"a patch of {_written(shapes[part])} on a weight of {_written(module)}")


_CHECKS = {"lora": _lora, "loha": _loha, "lokr": _lokr, "full": _full}


def _needed(shapes: Mapping[str, Shape], part: str) -> Shape:
    if part not in shapes:
        raise Lacking(f"no factor {part!r}")
    return shapes[part]


def _written(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "one number"
