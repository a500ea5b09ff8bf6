"""What the headers of a base's weights say, without reading the weights: which files there are, and what moves together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from realchar.errors import ModelError

MODELS = ("transformer", "text_encoder", "vae")
LENGTH_BYTES = 8  # of a safetensors header's length, at the beginning of the file
FAULTS = (OSError, ValueError, KeyError, AttributeError, TypeError)  # of headers and indices that are none
MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own library
MOST_SIDES = 8  # of a tensor
DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
DTYPE_BYTES |= {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class Parts:
    """A base's weights by what moves together, as numbers of parameters; the largest where there are several."""

    blocks: int  # how many the transformer has
    block: int  # without modulation
    modulation: int  # of one block
    text_layer: int  # of the text encoder's language or vision layers
    rest: int  # what is none of these, without token embedding and head, which are never on the device


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return a safetensors file's rows by tensor name, not looked at any further, and the byte where its data begins.

    Raises OSError, or ValueError where it has no whole header.
    """
    header, begin = _read_json(path, MAX_HEADER_BYTES)
    header.pop("__metadata__", None)
    return header, begin


class NoHeader(ValueError):
    """A file that is no safetensors, or is cut off in its header."""


def _read_json(path: Path, most_bytes: int) -> tuple[dict[str, Any], int]:
    with path.open("rb") as handle:
        length = int.from_bytes(handle.read(LENGTH_BYTES), "little")
        if most_bytes < length <= path.stat().st_size:
            raise ValueError(f"{path.name!r} has a header of {length >> 20} MiB, and {most_bytes >> 20} are possible")
        text = handle.read(length) if length <= most_bytes else b""
    try:
        header = json.loads(text if len(text) == length else b"")
        header.items()
    except (ValueError, AttributeError, RecursionError) as error:
        raise NoHeader(f"{path.name!r} has no whole header") from error
    return header, LENGTH_BYTES + length


@dataclass(frozen=True)
class Row:
    """A tensor's place in its file: bytes `start` to `stop`, counted from the file's beginning."""

    start: int
    stop: int
    dtype: str  # as the header writes it
    shape: tuple[int, ...]


def read_rows(path: Path, most_bytes: int = MAX_HEADER_BYTES) -> tuple[dict[str, Row], dict[str, str]]:
    """Return a safetensors file's tensors by name, each looked at, and its metadata.

    Raises OSError, or ValueError where it has no whole header, one above `most_bytes`, or where a tensor is not as its
    row says.
    """
    header, begin = _read_json(path, most_bytes)
    metadata = header.pop("__metadata__", None)
    size = path.stat().st_size
    try:
        if (end := data_end(header, begin)) > size:
            raise ValueError(f"{path.name!r} is cut off, {size} of {end} bytes are there")
        rows = {name: row_of(path, name, row, begin, size) for name, row in header.items()}
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path.name!r} has a damaged header") from error
    known = metadata.items() if isinstance(metadata, dict) else ()
    return rows, {key: value for key, value in known if isinstance(value, str)}


def row_of(file: Path, name: str, row: dict[str, Any], begin: int, end: int) -> Row:
    """Return a row of a header, whose data lies between the bytes `begin` and `end`.

    Raises ValueError where that is not so, KeyError or TypeError where it is no row.
    """
    start, stop = (begin + int(offset) for offset in row["data_offsets"])
    dtype, shape = str(row["dtype"]), tuple(int(side) for side in row["shape"])
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"{name!r} in {file.name!r} holds numbers of an unknown kind, {dtype[:20]!r}")
    if len(shape) > MOST_SIDES or min(shape, default=0) < 0 or stop - start != prod(shape) * DTYPE_BYTES[dtype]:
        raise ValueError(f"{name!r} in {file.name!r} is not of the size that its shape says")
    if not begin <= start <= stop <= end:
        raise ValueError(f"{name!r} lies outside {file.name!r}, which holds {end} bytes")
    return Row(start, stop, dtype, shape)


@dataclass(frozen=True)
class Sizes:
    """Bytes of a base's weights as stored: of each component, and of the largest single tensor."""

    components: dict[str, int]
    largest: int


@lru_cache(maxsize=4)
def read_sizes(base: Path) -> Sizes:
    """Read the sizes of a base's weights from their headers. Raises ModelError."""
    components = dict.fromkeys(MODELS, 0)
    largest = 0
    try:
        for component, _, row in _tensors(base):
            begin, end = row["data_offsets"]
            components[component] += int(end) - int(begin)
            largest = max(largest, int(end) - int(begin))
    except FAULTS as error:
        raise _unreadable(base, error) from error
    return Sizes(components, largest)


@lru_cache(maxsize=4)
def read_parts(base: Path) -> Parts:
    """Read what moves together in a base from the headers of its weights. Raises ModelError."""
    blocks: dict[str, int] = {}
    modulations: dict[str, int] = {}
    layers: dict[str, int] = {}
    rest = 0
    try:
        for component, name, row in _tensors(base):
            numel = prod(int(side) for side in row["shape"])
            of_block = re.match(r"transformer_blocks\.(\d+)\.", name) if component == "transformer" else None
            of_layer = re.match(r".*?((?:layers|blocks)\.\d+)\.", name) if component == "text_encoder" else None
            if of_block:
                kind = modulations if "_mod." in name else blocks
                kind[of_block[1]] = kind.get(of_block[1], 0) + numel
            elif of_layer:
                layers[of_layer[1]] = layers.get(of_layer[1], 0) + numel
            elif not name.endswith(("embed_tokens.weight", "lm_head.weight")):
                rest += numel
    except FAULTS as error:
        raise _unreadable(base, error) from error
    block, modulation, text_layer = (max(kind.values(), default=0) for kind in (blocks, modulations, layers))
    return Parts(len(blocks), block, modulation, text_layer, rest)


def _unreadable(base: Path, error: Exception) -> ModelError:
    return ModelError(
        "base_damaged",
        f"The weights of base {str(base)!r} can't be read ({error}); copy the folder again.",
        path=str(base),
    )


def _tensors(base: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for component in MODELS:
        for file in weight_files(base / component):
            for name, row in read_header(file)[0].items():
                yield component, name, row


def weight_files(component: Path) -> list[Path]:
    """Return the files of a component's weights, those that its index names where it has one, whether there or not.

    Raises OSError, or ValueError, KeyError, AttributeError or TypeError where the index is none.
    """
    for index in sorted(component.glob("*.safetensors.index.json")):
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [component / file for file in sorted(set(names.values()))]
    return sorted(component.glob("*.safetensors"))


def check_headers(base: Path) -> None:
    """Raise ModelError with the first weights file of a base that is missing, cut off or none. Reads headers only."""
    for component in MODELS:
        fault = _fault(base / component)
        if fault:
            raise ModelError(
                "base_damaged",
                f"Base {str(base)!r} can't be read ({component}: {fault}); copy the folder again.",
                path=str(base),
            )


def _fault(component: Path) -> str:
    try:
        files = weight_files(component)
        for file in files:
            header, begin = read_header(file)
            end, size = data_end(header, begin), file.stat().st_size
            if end > size:
                return f"{file.name!r} is cut off, {size} of {end} bytes are there"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name!r} is missing"
    except (OSError, ValueError, KeyError, AttributeError, TypeError, IndexError) as error:
        return str(error)
    return "" if files else "no .safetensors file is there"


def data_end(header: dict[str, Any], begin: int) -> int:
    """Return the byte where the data of a safetensors file ends, by its header."""
    return begin + max((int(row["data_offsets"][1]) for row in header.values()), default=0)
