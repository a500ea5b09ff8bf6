"""Read Blender's uncompressed multi-layer OpenEXR: Pillow cannot, and nothing else here needs an EXR library.

Layout: https://openexr.com/en/latest/OpenEXRFileLayout.html (single part, scan lines, increasing y).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Channels = dict[str, NDArray[np.float32]]
Dtype = np.dtype[Any]

MAGIC_AND_VERSION = 8  # bytes
LINE_HEADER = 8  # y and size, before every scan line
CHANNEL_TAIL = 16  # pixel type, pLinear and padding, x and y sampling
DTYPES: dict[int, Dtype] = {0: np.dtype("<u4"), 1: np.dtype("<f2"), 2: np.dtype("<f4")}


@dataclass(frozen=True)
class Header:
    channels: list[tuple[str, Dtype]]  # in the file's order
    width: int
    height: int
    end: int  # offset of what follows the header


def read(path: Path) -> Channels:
    """Return each channel of the file as (H, W); raise ValueError where it is compressed."""
    data = path.read_bytes()
    header = _header(data)
    line = sum(dtype.itemsize for _, dtype in header.channels) * header.width
    start = header.end + 8 * header.height  # the table of line offsets: the lines follow one another anyway
    lines = np.frombuffer(data, np.uint8, (LINE_HEADER + line) * header.height, start)
    lines = lines.reshape(header.height, LINE_HEADER + line)[:, LINE_HEADER:]
    channels: Channels = {}
    at = 0
    for name, dtype in header.channels:
        width = dtype.itemsize * header.width
        channels[name] = np.ascontiguousarray(lines[:, at : at + width]).view(dtype).astype(np.float32)
        at += width
    return channels


def _header(data: bytes) -> Header:
    at = MAGIC_AND_VERSION
    attributes: dict[str, bytes] = {}
    while data[at]:
        name, at = _text(data, at)
        _, at = _text(data, at)  # the attribute's type
        (size,) = struct.unpack_from("<i", data, at)
        attributes[name] = data[at + 4 : at + 4 + size]
        at += 4 + size
    if attributes["compression"] != b"\0":
        raise ValueError(f"Compression {attributes['compression'][0]} is not read; save the EXR with codec NONE.")
    left, top, right, bottom = struct.unpack("<4i", attributes["dataWindow"])
    return Header(_channel_list(attributes["channels"]), right - left + 1, bottom - top + 1, at + 1)


def _channel_list(data: bytes) -> list[tuple[str, Dtype]]:
    channels = []
    at = 0
    while data[at]:
        name, at = _text(data, at)
        (kind,) = struct.unpack_from("<i", data, at)
        channels.append((name, DTYPES[kind]))
        at += CHANNEL_TAIL
    return channels


def _text(data: bytes, at: int) -> tuple[str, int]:
    """Return the zero-terminated text at an offset, and the offset after it."""
    end = data.index(0, at)
    return data[at:end].decode(), end + 1
