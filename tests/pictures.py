"""Pictures, files and colour profiles that the preprocessing tests are made of."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from realchar.errors import InvalidInput
from realchar.images import PreparedPicture, PrepareOptions, prepare

QUADS = ((220, 30, 30), (30, 180, 40), (30, 60, 220), (240, 220, 30))
P3 = ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407))
ADOBE = ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457))
SRGB = ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.71410))


def quads(width: int = 96, height: int = 64) -> Image.Image:
    image = Image.new("RGB", (width, height))
    for i, color in enumerate(QUADS):
        image.paste(color, (i % 2 * width // 2, i // 2 * height // 2, width, height))
    return image


def painting(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    waves = [127 + 110 * np.sin(x / a + y / b) for a, b in ((37, 91), (53, -29), (17, 23))]
    return Image.fromarray(np.stack(waves, -1).astype(np.uint8))


def file(image: Image.Image, kind: str = "PNG", **options: Any) -> io.BytesIO:
    stream = io.BytesIO()
    image.save(stream, format=kind, **options)
    return io.BytesIO(stream.getvalue())


def at(picture: Image.Image, x: float, y: float) -> tuple[int, ...]:
    value = picture.getpixel(
        (min(int(x * picture.width), picture.width - 1), min(int(y * picture.height), picture.height - 1))
    )
    assert isinstance(value, tuple)
    return value


def close(got: tuple[int, ...], want: tuple[int, ...], tolerance: int) -> bool:
    return max(abs(a - b) for a, b in zip(got, want, strict=True)) <= tolerance


def codes(prepared: PreparedPicture) -> list[str]:
    return [note["code"] for note in prepared.report["notes"]]


def refused(source: Any, options: PrepareOptions | None = None) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        prepare(source, options or PrepareOptions())
    return caught.value


def are_quads(picture: Image.Image, tolerance: int = 12) -> bool:
    spots = ((0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75))
    return all(close(at(picture, *spot), color, tolerance) for spot, color in zip(spots, QUADS, strict=True))


def profile(space: bytes, tags: dict[bytes, bytes], pcs: bytes = b"XYZ ", kind: bytes = b"mntr") -> bytes:
    """Build a small version 2 ICC profile."""
    text = b"Made for a test\0"
    tags = {
        b"desc": b"desc" + bytes(4) + struct.pack(">I", len(text)) + text + bytes(78),
        b"cprt": b"text" + bytes(4) + b"none\0",
        b"wtpt": xyz((0.9642, 1.0, 0.8249)),
        **tags,
    }
    table, body, offset = b"", b"", 132 + 12 * len(tags)
    for name, data in tags.items():
        padded = data + bytes(-len(data) % 4)
        table += name + struct.pack(">II", offset + len(body), len(data))
        body += padded
    head = struct.pack(">I4sI4s4s4s", offset + len(body), b"none", 0x02400000, kind, space, pcs)
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">III", 0xF6D6, 0x10000, 0xD32D) + bytes(48)
    return head + struct.pack(">I", len(tags)) + table + body


def xyz(values: tuple[float, float, float]) -> bytes:
    return b"XYZ " + bytes(4) + b"".join(struct.pack(">i", round(v * 65536)) for v in values)


def gamma(value: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(value * 256))


def rgb_profile(primaries: tuple[tuple[float, float, float], ...]) -> bytes:
    tags = {c + b"XYZ": xyz(p) for c, p in zip((b"r", b"g", b"b"), primaries, strict=True)}
    return profile(b"RGB ", {**tags, **{c + b"TRC": gamma(2.2) for c in (b"r", b"g", b"b")}})


def cmyk_profile() -> bytes:
    corners = bytearray()
    for i in range(16):
        c, m, y, k = (i >> 3 & 1), (i >> 2 & 1), (i >> 1 & 1), i & 1
        light = 0 if k else 255 - 60 * c - 70 * m - 20 * y
        corners += bytes((max(light, 0), 128 if k else 128 - 40 * c + 60 * m, 128 if k else 128 - 40 * c + 70 * y))
    identity = b"".join(struct.pack(">i", 65536 if i % 4 == 0 else 0) for i in range(9))
    ramp = bytes(range(256))
    lut = b"mft1" + bytes(4) + bytes((4, 3, 2, 0)) + identity + ramp * 4 + bytes(corners) + ramp * 3
    return profile(b"CMYK", {b"A2B0": lut}, pcs=b"Lab ", kind=b"prtr")


def expected_srgb(color: tuple[int, ...], primaries: tuple[tuple[float, float, float], ...]) -> tuple[int, ...]:
    linear = np.linalg.inv(np.array(SRGB).T) @ np.array(primaries).T @ (np.array(color) / 255) ** 2.2
    linear = linear.clip(0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return tuple(int(v) for v in np.rint(encoded * 255))


def png16(rows: np.ndarray[Any, Any], color_type: int, extra: bytes = b"", depth: int = 16) -> io.BytesIO:
    """Encode big-endian samples (height, width, channels), or packed rows, as a PNG that Pillow can't write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width = rows.shape[:2]
    body = b"".join(b"\0" + row.tobytes() for row in rows)
    width = width * 8 // depth if depth < 8 else width
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, 0))
    return io.BytesIO(b"\x89PNG\r\n\x1a\n" + head + extra + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b""))


def trns(*values: int) -> bytes:
    data = b"tRNS" + b"".join(struct.pack(">H", v) for v in values)
    return struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))


def ycck(ink: Image.Image) -> io.BytesIO:
    c, m, y, k = ink.split()
    luma = Image.merge("RGB", (c, m, y)).convert("YCbCr").split()
    stored = Image.merge("CMYK", [*(channel.point(lambda v: 255 - v) for channel in luma), k])
    data = bytearray(file(stored, "JPEG", quality=95, subsampling=0).getvalue())
    data[data.index(b"Adobe") + 11] = 2
    return io.BytesIO(bytes(data))
