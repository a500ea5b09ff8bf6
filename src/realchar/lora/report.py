"""What a LoRA file is, whether it fits a transformer, and what it adds to each module. No torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from realchar.headers import Row
from realchar.lora.containers import Refused, read
from realchar.lora.keys import bare, of_text_encoder
from realchar.lora.pieces import Lacking, Misfit, Piece, rank_of
from realchar.lora.scales import Scales, scales_of
from realchar.lora.sorting import Sorted, short, sort
from realchar.lora.target import Target, concerns_modulation
from realchar.lora.values import FLOATS, Values, is_finite, size_of

Action = Literal["accept", "warn", "reject"]
BASE_KEYS = ("modelspec.architecture", "ss_base_model_version", "base_model", "base_model_name_or_path")
LEAST, MOST = 1e-9, 1e6  # of what is added to a weight: less is lost in rounding, more was never trained
OVERFLOWS = 1e30  # what no sum, and no picture, survives


@dataclass(frozen=True)
class Report:
    """What is known of a file. `reason`: a sentence or a few; `missed`: what it holds and this transformer has not.

    total counts the file's modules; notes: what is worth knowing and no reason to hesitate.
    """

    action: Action
    reason: str
    code: str = ""
    format: str = ""
    pieces: tuple[Piece, ...] = ()
    total: int = 0
    missed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rows: Mapping[str, Row] = field(default_factory=dict, repr=False, compare=False)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def matched(self) -> int:
        return len({piece.module for piece in self.pieces})

    @property
    def rank(self) -> int | None:
        """Return the rank that most modules have; None where none has one."""
        ranks = Counter(piece.rank for piece in self.pieces if piece.rank is not None)
        return ranks.most_common(1)[0][0] if ranks else None

    @property
    def touches_modulation(self) -> bool:
        return any(concerns_modulation(f"{piece.module}.weight") for piece in self.pieces)

    def to_json(self) -> dict[str, Any]:
        return {
            "action": self.action,
            "format": self.format,
            "reason": self.reason,
            "matched": self.matched,
            "total": self.total,
            "missed": list(self.missed),
            "modules": {piece.module: {"rank": piece.rank, "scale": piece.scale} for piece in self.pieces},
            "rank": self.rank,
            "touches_modulation": self.touches_modulation,
            "notes": list(self.notes),
        }


def examine(file: Path, target: Target, *, look: bool = True) -> Report:
    """Return what a file is to a transformer. Never raises: what can't be used is refused, with the reason.

    look: at all of its numbers, too, which reads the whole file.
    """
    name = file.name.encode("utf-8", "replace").decode()
    try:
        rows, metadata = read(file)
        found = sort(rows, target)
        with closing(Values(file)) as values:
            report = _fitted(file, rows, metadata, found, values, target)
            if look:
                report = _looked_at(report, values)
    except Refused as error:
        return Report("reject", f"LoRA {name!r} {error}", error.code)
    except OSError as error:
        return Report("reject", f"LoRA {name!r} can't be read ({error.strerror or error}); check it.", "lora_damaged")
    fits = f"LoRA {name!r} fits: {report.matched} of {report.total} modules."
    return replace(report, reason=f"LoRA {name!r} {report.reason}" if report.reason else fits)


def _fitted(
    file: Path,
    rows: Mapping[str, Row],
    metadata: Mapping[str, str],
    found: Sorted,
    values: Values,
    target: Target,
) -> Report:
    scales = scales_of(file, metadata)
    alphas = {owner: _alpha(owner, rows[key], values) for owner, key in found.alphas.items() if owner in found.ours}
    pieces = [
        _piece(found.ours[owner], kind, keys, rows, alphas.get(owner), scales, target)
        for owner in sorted(found.ours, key=found.ours.__getitem__)
        for kind, keys in found.keys[owner].items()
    ]
    missed = tuple(sorted([*map(bare, found.strange), *found.loose]))
    said = [*_of_missed(found), *_of_alphas(alphas), *scales.said]
    return Report(
        "warn" if said else "accept",
        " It ".join(said),
        format=found.format,
        pieces=tuple(pieces),
        total=len(found.keys),
        missed=missed,
        notes=_notes(found, scales, alphas, metadata),
        rows=rows,
        metadata=metadata,
    )


def _piece(
    module: str,
    kind: str,
    keys: Mapping[str, str],
    rows: Mapping[str, Row],
    alpha: float | None,
    scales: Scales,
    target: Target,
) -> Piece:
    parts = {part: rows[key] for part, key in keys.items()}
    odd = next((part for part, row in parts.items() if row.dtype not in FLOATS or 0 in row.shape), None)
    if odd is not None:
        what = "holds no numbers" if 0 in parts[odd].shape else f"is of the kind {parts[odd].dtype}"
        raise Refused("lora_damaged", f"is damaged: {short(keys[odd])} {what}; download it again.")
    try:
        rank = rank_of(kind, parts, target.modules[module])
        _check_bias(parts, target.parameters.get(f"{module}.bias"))
    except Lacking as error:
        raise Refused("lora_damaged", f"is damaged: {module!r} lacks a factor; download it again.") from error
    except Misfit as error:
        reason = f"does not fit this base: {error}, {module!r}; choose a version made for it."
        raise Refused("lora_base", reason) from error
    return Piece(module, kind, dict(keys), scales.scale(module, rank, alpha) if rank else 1.0, rank)


def _check_bias(parts: Mapping[str, Row], bias: tuple[int, ...] | None) -> None:
    for part in ("bias", "diff_b", "set_b"):
        if part in parts and parts[part].shape != bias:
            raise Misfit(f"a bias of {parts[part].shape} where the module has {bias or 'none'}")


def _alpha(owner: str, row: Row, values: Values) -> float:
    alpha = values.number(row)
    if not math.isfinite(alpha):
        raise Refused("lora_damaged", f"is damaged: the alpha of {short(owner)} is no number; download it again.")
    return alpha


def _of_missed(found: Sorted) -> list[str]:
    """Say what the file holds and the model has not."""
    said = []
    texts = [owner for owner in found.strange if of_text_encoder(owner)]
    others = [owner for owner in found.strange if owner not in texts]
    if others:
        first = short(bare(others[0]))
        said.append(f"fits in part: this base lacks {len(others)} of its {len(found.keys)} modules (first: {first}).")
    if texts:
        places = "1 place" if len(texts) == 1 else f"{len(texts)} places"
        said.append(f"also changes the text encoder, in {places}; that part is left out.")
    if found.loose:
        keys = "key that is" if len(found.loose) == 1 else "keys that are"
        said.append(f"holds {len(found.loose)} {keys} no part of a LoRA, left out (first: {short(found.loose[0])}).")
    return said


def _of_alphas(alphas: Mapping[str, float]) -> list[str]:
    zeros = sum(alpha == 0 for alpha in alphas.values())
    where = "1 module" if zeros == 1 else f"{zeros} modules"
    return [f"has an alpha of 0 in {where}, read as the rank: else it would do nothing."] if zeros else []


def _notes(found: Sorted, scales: Scales, alphas: Mapping[str, float], metadata: Mapping[str, str]) -> tuple[str, ...]:
    notes = []
    if not alphas and scales.alpha is not None:
        notes.append(f"Alpha {scales.alpha:g} is from {scales.source}.")
    elif not alphas and any(owner.startswith("base_model.") for owner in found.ours):
        notes.append("Alpha stands nowhere (PEFT keeps it in adapter_config.json beside the file); the rank is taken.")
    base = next((metadata[key] for key in BASE_KEYS if key in metadata), "")
    if base:
        notes.append(f"Made for {short(base)}, by its metadata.")
    return tuple(notes)


def _looked_at(report: Report, values: Values) -> Report:
    """Refuse values that are no numbers; say where what is added is nothing, or more than can be right."""
    zeros, most = 0, 0.0
    for piece in report.pieces:
        largest = {part: values.largest(report.rows[key]) for part, key in piece.keys.items()}
        for part, key in piece.keys.items():
            if not is_finite(largest[part], report.rows[key].dtype):
                reason = f"holds values that are no numbers, in {short(key)}; download it again."
                raise Refused("lora_nan", reason)
        added = _bound(
            piece, {part: size_of(bits, report.rows[piece.keys[part]].dtype) for part, bits in largest.items()}
        )
        if not added <= OVERFLOWS:
            reason = f"overflows: up to {added:.0e} would be added to {piece.module!r}; download it again, or choose another."
            raise Refused("lora_nan", reason)
        zeros += added < LEAST
        most = max(most, added)
    if most > MOST:
        said = f"holds values so large that pictures will hardly come out (up to {most:.0e} added to a weight)."
        return replace(report, action="warn", reason=" It ".join(filter(None, (said, report.reason))))
    if zeros < len(report.pieces):
        note = (
            f"{zeros} of its {len(report.pieces)} modules add nothing: all of their values are zero or as good as that."
        )
        return replace(report, notes=(*report.notes, note)) if zeros else report
    nothing = "adds nothing: all of its values are zero or as good as that, as before training."
    return replace(report, action="warn", reason=" It ".join(filter(None, (nothing, report.reason))))


def _bound(piece: Piece, sizes: Mapping[str, float]) -> float:
    """Return a bound of what a piece adds to a number of its module, from the largest sizes of its factors."""
    rank = piece.rank or 1

    def product(*parts: str) -> float:
        """Bound a product of factors, each of `rank` sums with the next; those that are not there are left out."""
        found = [sizes[part] for part in parts if part in sizes]
        return math.prod(found) * float(rank) ** (len(found) - 1) if found else 0.0

    halves = [sizes.get(f"w{i}", 0.0) or product(f"w{i}_a", f"t{i}", f"w{i}_b") for i in "12"]
    made = math.prod(halves) if piece.kind in ("loha", "lokr") else product("up", "mid", "down")
    added = abs(piece.scale) * max(made, *(sizes.get(part, 0.0) for part in ("bias", "diff", "diff_b")))
    replaced = [sizes[part] for part in ("magnitude", "set", "set_b") if part in sizes]
    return max(added, *replaced, 1.0) if replaced else added  # what is replaced changes, also where it is by zeros
