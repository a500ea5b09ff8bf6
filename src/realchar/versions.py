"""The LoRA versions in the weights folder: listed, looked up by name, and judged against a base. No torch.

A name from a client is only ever compared with the listing. Links are followed, to files and to folders: whoever owns the
folder made them, and no client can make one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from realchar.catalog import BaseInfo
from realchar.errors import NotFound
from realchar.lora import Report, Target, examine, target_in

SUFFIX = ".safetensors"
UNREAD = (".ckpt", ".pt", ".pth", ".bin", ".gguf")  # pickles, which may run code, and what is no LoRA
PICTURES = (".preview.png", ".png", ".jpg", ".jpeg", ".webp")  # that may lie beside a version, in this order
STEP_KEYS = ("ss_steps", "training_steps", "global_step", "step")
EXTRACT = (
    *("modelspec.title", "modelspec.author", "modelspec.license", "modelspec.trigger_phrase", "modelspec.architecture"),
    *("ss_output_name", "ss_base_model_version", "base_model", "ss_network_dim", "ss_network_alpha"),
)
MOST_KNOWN = 10_000  # reports that are remembered
MOST_EXTRACT = 120  # characters of a value in metadata that are shown
_COPY = re.compile(r"\s*\(\d+\)$")  # of a second download of the same file


@dataclass(frozen=True)
class WeightsInfo:
    """A LoRA version. `name` is the key of the listing; `version` its training steps, from the trailing number."""

    name: str
    title: str
    version: int | None
    bytes: int
    path: Path
    modified_ns: int


def scan_weights(folder: Path) -> list[WeightsInfo]:
    """List the LoRA files in `folder` and below, the highest version first; base folders in it are passed over."""
    found = [_info(folder, file) for file in _lora_files(folder)]
    listed = _with_own_names([info for info in found if info is not None])
    return sorted(listed, key=lambda info: (-1 if info.version is None else info.version, info.name), reverse=True)


def info_of(file: Path) -> WeightsInfo | None:
    """Return a file outside of the listing as a version; None where it is not there."""
    return _info(file.parent, file)


def _info(folder: Path, file: Path) -> WeightsInfo | None:
    try:
        stat = file.stat()
    except OSError:  # gone since, or a link to nothing
        return None
    stem = printable(file.stem)
    name = printable(file.relative_to(folder).with_suffix("").as_posix())
    return WeightsInfo(name, stem, trailing_number(stem), stat.st_size, file, stat.st_mtime_ns)


def _with_own_names(infos: list[WeightsInfo]) -> list[WeightsInfo]:
    """Let files that differ in nothing but the case of the suffix, or in bytes that are no text, have names of their own."""
    times: dict[str, int] = {}
    for info in infos:
        times[info.name] = times.get(info.name, 0) + 1
    return [replace(info, name=f"{info.name}{info.path.suffix}") if times[info.name] > 1 else info for info in infos]


def printable(name: str) -> str:
    """Return a file name as text, whatever its bytes are."""
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # no file name, but what a client sends as one
        return name.encode("utf-8", "backslashreplace").decode()


def unread_files(folder: Path) -> list[str]:
    """Return the files in the weights folder that look like weights of a kind that is never opened."""
    return [printable(file.relative_to(folder).as_posix()) for file in _files(folder) if file.suffix.lower() in UNREAD]


def _lora_files(folder: Path) -> Iterator[Path]:
    return (file for file in _files(folder) if file.suffix.lower() == SUFFIX)


def _files(folder: Path) -> Iterator[Path]:
    seen: set[str] = set()  # real folders: links may lead in a circle
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen or "model_index.json" in names:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(parent, name)
            if not name.startswith(".") and file.is_file():
                yield file


def trailing_number(stem: str) -> int | None:
    """Return the training steps in a file name: its last group of digits (`…_v2511_0008500` → 8500)."""
    match = re.search(r"(\d{1,18})\D*$", _COPY.sub("", stem))
    return int(match.group(1)) if match else None


def get_weights(folder: Path, name: str) -> WeightsInfo:
    """Look `name` up in the listing, by its key or by its file name; never as a path. Raises NotFound."""
    listing = scan_weights(folder)
    wanted = name[: -len(SUFFIX)] if name.lower().endswith(SUFFIX) else name
    for key in (name, wanted):
        for info in listing:
            if info.name == key:
                return info
    same = [info for info in listing if info.title == wanted]
    if len(same) == 1:
        return same[0]
    known = ", ".join(info.name for info in listing[:5]) or "none"
    shown = printable(name) if len(name) <= 200 else f"{printable(name[:200])}…"
    raise NotFound(
        "weights_unknown", f"LoRA version {shown!r} is not in the weights folder (there: {known}).", name=shown
    )


def target_of_base(base: BaseInfo) -> Target:
    """Return the transformer that versions for this base aim at. Raises ModelError."""
    return target_in(base.path / "transformer")


def report_of(info: WeightsInfo, target: Target, *, look: bool = False) -> Report:
    """Return what a version is to a transformer; read again only when the file has changed.

    look: at all of its numbers, too, which reads the whole file.
    """
    key = info.path, (info.bytes, info.modified_ns, _beside(info.path)), target
    looked, report = _known.get(key, (False, None))
    if report is None or look > looked:  # what was looked at knows more than the header alone, and is kept
        full = examine(info.path, target, look=look)
        report = replace(full, rows={}, metadata=_extract(full.metadata))  # a header may be megabytes
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[key] = look, report
    return report


_known: dict[tuple[Path, tuple[int, ...], Target], tuple[bool, Report]] = {}


def _beside(path: Path) -> int:
    """Return when PEFT's file beside a version was changed, which decides its scale."""
    try:
        return path.with_name("adapter_config.json").stat().st_mtime_ns
    except OSError:
        return 0


def _extract(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return what is worth showing of metadata, shortened: never tags or paths of whoever trained it."""
    known = {key: metadata[key] for key in (*EXTRACT, *STEP_KEYS, "training_info") if metadata.get(key)}
    return {key: value[:MOST_EXTRACT] for key, value in known.items()}


def newest_weights(folder: Path, base: BaseInfo) -> WeightsInfo | None:
    """Return the newest version that fits this base, by its header; None where none does."""
    return newest_of(scan_weights(folder), target_of_base(base))


def newest_of(listing: Iterable[WeightsInfo], target: Target) -> WeightsInfo | None:
    """Return the first of a listing that fits a transformer."""
    return next((info for info in listing if report_of(info, target).action != "reject"), None)


def steps_of(info: WeightsInfo, report: Report) -> int | None:
    """Return how long a version was trained, from its name or else from its metadata."""
    if info.version is not None:
        return info.version
    told: list[object] = [report.metadata.get(key) for key in STEP_KEYS]
    with suppress(ValueError, AttributeError, RecursionError):
        told.append(json.loads(report.metadata.get("training_info", "{}")).get("step"))
    return next((int(str(value)) for value in told if str(value).isascii() and str(value).isdecimal()), None)


def picture_beside(info: WeightsInfo) -> Path | None:
    """Return the picture of the same name that lies beside a version, if one does."""
    stem = info.path.name[: -len(SUFFIX)]
    return next((file for end in PICTURES if (file := info.path.with_name(stem + end)).is_file()), None)


@dataclass(frozen=True)
class Version:
    """A version as the listing shows it: what it is to a base, and whether it is the one that is taken by default."""

    info: WeightsInfo
    report: Report
    default: bool
    recommendation: str

    def to_json(self) -> dict[str, Any]:
        """Return what people may know of it; its place on the disk is not among that."""
        info, report = self.info, self.report
        return {
            "name": info.name,
            "title": info.title,
            "version": info.version,
            "steps": steps_of(info, report),
            "bytes": info.bytes,
            "action": report.action,
            "reason": report.reason,
            "format": report.format,
            "matched": report.matched,
            "total": report.total,
            "rank": report.rank,
            "touches_modulation": report.touches_modulation,
            "default": self.default,
            "recommendation": self.recommendation,
            "picture": picture_beside(info) is not None,
            "metadata": dict(report.metadata),
        }


def list_versions(folder: Path, target: Target) -> list[Version]:
    """List the versions in a weights folder with what they are to a transformer, by their headers; newest first."""
    infos, table = scan_weights(folder), read_recommendations(folder)
    reports = [report_of(info, target) for info in infos]
    first = next((i for i, report in enumerate(reports) if report.action != "reject"), None)
    return [
        Version(info, report, i == first, recommendation_for(info.version, table))
        for i, (info, report) in enumerate(zip(infos, reports, strict=True))
    ]


def look_at(info: WeightsInfo, folder: Path, target: Target) -> Version:
    """Return a version after looking at all of its numbers."""
    newest = newest_of(scan_weights(folder), target)
    default = newest is not None and newest.path == info.path
    report = report_of(info, target, look=True)
    return Version(info, report, default, recommendation_for(info.version, read_recommendations(folder)))


# ---- what a version is recommended for

RECOMMENDATIONS = "recommendations.txt"
_RANGE = re.compile(r"(?P<low>\d{1,18})\s*(?:(?:-|–|\.\.)\s*(?P<high>\d{1,18})|(?P<on>\+))?\s+(?P<text>\S.*)")


@dataclass(frozen=True)
class Recommendation:
    """What versions from `low` to `high` (None: and all above) are for."""

    low: int
    high: int | None
    text: str


def read_recommendations(folder: Path) -> list[Recommendation]:
    """Read the weights folder's text file; lines that are none are passed over."""
    try:
        text = (folder / RECOMMENDATIONS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for line in text[:100_000].splitlines():
        match = _RANGE.fullmatch(line.strip())
        if match:
            low = int(match["low"])
            high = None if match["on"] else int(match["high"] or low)
            found.append(Recommendation(low, high, match["text"][:200]))
    return found


def recommendation_for(version: int | None, table: Iterable[Recommendation]) -> str:
    """Return the first line of the table that a version falls under; empty where none does."""
    if version is None:
        return ""
    return next((r.text for r in table if r.low <= version and (r.high is None or version <= r.high)), "")
