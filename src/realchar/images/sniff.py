"""Find a file's format from its first bytes.

The list is closed. Formats that need an interpreter or another program (EPS, PDF, WMF, SVG) are not on it, so Pillow is
never asked about them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import BinaryIO

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    ImageFile,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TgaImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

HEAD_BYTES = 64
_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
_BMP_HEADERS = {12, 16, 40, 52, 56, 64, 108, 124}
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG2000"),
    (b"\xff\x4f\xff\x51", "JPEG2000"),
)


def find_format(head: bytes) -> str | None:
    """Return the format's name for a file that begins with `head` (64 bytes or the whole file), or None."""
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[4:8] == b"ftyp":
        return _find_heif_kind(head)
    if head[:2] == b"BM" and len(head) > 14 and head[14] in _BMP_HEADERS:
        return "BMP"
    if len(head) > 2 and head[:1] == b"P" and head[1:2] in b"123456f" and head[2:3].isspace():
        return "PPM"
    # Targa has no signature: colour map flag, picture type and bits per pixel must all make sense
    if len(head) > 18 and head[1] in (0, 1) and head[2] in (1, 2, 3, 9, 10, 11) and head[16] in (8, 16, 24, 32):
        return "TGA"
    return None


def _find_heif_kind(head: bytes) -> str | None:
    end = min(int.from_bytes(head[:4], "big"), len(head))
    brands = {head[8:12]} | {head[at : at + 4] for at in range(16, end - 3, 4)}
    if brands & {b"avif", b"avis"}:
        return "AVIF"
    return "HEIF" if brands & _HEIF_BRANDS else None


def read_webp_size(head: bytes) -> tuple[int, int] | None:
    """Return (width, height) in pixels: Pillow's WebP reader would allocate the canvas before it tells."""
    kind, body = head[12:16], head[20:]
    if kind == b"VP8X" and len(body) >= 10:
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L" and len(body) >= 5:
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and len(body) >= 10:
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    return None


def _open_jpeg(stream: BinaryIO, filename: str) -> ImageFile.ImageFile:
    try:
        return JpegImagePlugin.jpeg_factory(stream, filename)  # looks for an MPO index too
    except Exception:  # the index of further pictures is damaged: the first picture may be whole
        stream.seek(0)
        return JpegImagePlugin.JpegImageFile(stream, filename)


OPENERS: dict[str, Callable[[BinaryIO, str], ImageFile.ImageFile]] = {
    "PNG": PngImagePlugin.PngImageFile,
    "JPEG": _open_jpeg,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "JPEG2000": Jpeg2KImagePlugin.Jpeg2KImageFile,
    "PPM": PpmImagePlugin.PpmImageFile,
    "TGA": TgaImagePlugin.TgaImageFile,
}
if AvifImagePlugin.SUPPORTED:
    OPENERS["AVIF"] = AvifImagePlugin.AvifImageFile


def find_opener(name: str) -> Callable[[BinaryIO, str], ImageFile.ImageFile] | None:
    """Return what reads format `name`, or None where this machine lacks the plugin for it."""
    if name == "HEIF" and importlib.util.find_spec("pillow_heif"):
        # used directly: registering it would change Pillow for the whole process
        opener: Callable[[BinaryIO, str], ImageFile.ImageFile]
        opener = importlib.import_module("pillow_heif.as_plugin").HeifImageFile
        return opener
    return OPENERS.get(name)
