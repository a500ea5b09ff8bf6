"""Preprocessing: what is no usable picture gets one clear sentence, and nothing else escapes."""

from __future__ import annotations

import io
import os
import random
import struct
import subprocess
import threading
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from realchar.errors import InvalidInput
from realchar.images import PrepareOptions, prepare, rejection, sniff
from tests.pictures import P3, file, painting, quads, refused, rgb_profile

# ---- bad input


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        bytes(5000),
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"<html>",
        b"%PDF-1.7\n",
        b"8BPS\0\1" + bytes(40),
        b"PK\3\4" + bytes(60),
        b"\xd7\xcd\xc6\x9a" + bytes(60),
        b"\0\0\0\x20ftypisom" + bytes(60),
        b"BM is a text",
        b"Photo text",
    ],
)
def test_not_a_picture(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "写真 (1).png"
    path.write_bytes(content)
    error = refused(path)
    assert error.code == "not_picture" and error.args_["source"] is None
    assert rejection(error)["reason"].endswith(".")


@pytest.mark.parametrize(
    "head", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"\xc5\xd0\xd3\xc6" + bytes(60)]
)
def test_no_interpreter_is_started(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", fail)
    monkeypatch.setattr(os, "system", fail)
    assert refused(io.BytesIO(head)).code == "not_picture"


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert refused(tmp_path).code == "not_picture"
    assert refused(tmp_path / "gone.png").code == "unreadable"
    assert refused(tmp_path / ("x" * 5000)).code == "unreadable"
    assert refused(Path("nul\0byte")).code == "unreadable"
    closed = io.BytesIO(b"x")
    closed.close()
    assert refused(closed).code == "unreadable"


def test_bombs_are_refused_from_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    monkeypatch.setitem(sniff.OPENERS, "WEBP", fail)
    lie = bytearray(file(quads()).getvalue())
    lie[16:24] = struct.pack(">II", 60000, 60000)
    lie[29:33] = struct.pack(">I", zlib.crc32(bytes(lie[12:29])))
    error = refused(io.BytesIO(bytes(lie)))
    assert error.code == "bomb" and error.args_["w"] == 60000 and error.args_["max"] == 180
    assert error.args_["source"] == {"format": "PNG", "mode": "RGB", "size": [60000, 60000]}
    webp = b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + (16382).to_bytes(3, "little") * 2 + bytes(40)
    assert refused(io.BytesIO(webp)).code == "bomb"
    assert refused(file(quads(2000, 1000)), PrepareOptions(max_megapixels=1)).code == "bomb"


def test_thin() -> None:
    error = refused(file(Image.new("RGB", (603, 3))))
    assert error.code == "thin" and "603×3" in error.message and "200:1" in error.message
    assert prepare(file(Image.new("RGB", (600, 3), "red"))).picture.size == (600, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "TGA"])
def test_no_half_pictures(kind: str) -> None:
    data = file(painting(120, 90), kind).getvalue()
    for part in (0.05, 0.2, 0.5, 0.8, 0.95):
        assert refused(io.BytesIO(data[: int(len(data) * part)])).code in ("broken", "not_picture")
    assert prepare(io.BytesIO(data)).picture.size == (120, 90)


def test_heic_without_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    error = refused(io.BytesIO(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)))
    assert error.code == "heic" and "pillow-heif" in error.message


def mutants(count: int) -> list[tuple[int, bytes]]:
    rng = random.Random(7)
    exif = Image.Exif()
    exif[0x0112] = 6
    soft = quads()
    soft.putalpha(Image.linear_gradient("L").resize(soft.size))
    makers: list[Callable[[], io.BytesIO]] = [
        lambda: file(soft, icc_profile=rgb_profile(P3)),
        lambda: file(quads().quantize(8), transparency=1),
        lambda: file(quads(), "JPEG", exif=exif, icc_profile=rgb_profile(P3)),
        lambda: file(soft, "WEBP", exif=exif),
        lambda: file(quads(), "GIF", save_all=True, append_images=[quads().rotate(90)]),
        lambda: file(soft, "TIFF"),
        lambda: file(quads(), "MPO", save_all=True, append_images=[quads(32, 32)]),
        lambda: file(soft, "AVIF"),
        lambda: file(quads(), "BMP"),
        lambda: file(soft, "TGA", compression="tga_rle"),
    ]
    found = []
    for i in range(count):
        data = bytearray(makers[i % len(makers)]().getvalue())
        reach = min(len(data), 300) if rng.random() < 0.6 else len(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(reach)] ^= 1 << rng.randrange(8)
        found.append((i, bytes(data)))
    return found


def test_bit_flips_never_escape() -> None:
    outcomes = set()
    for i, data in mutants(250):
        try:
            assert prepare(io.BytesIO(data)).picture.mode == "RGB", i
            outcomes.add("accepted")
        except InvalidInput as error:
            outcomes.add(error.code)
    assert {"accepted", "broken"} <= outcomes


def odd_png() -> io.BytesIO:
    """Return a PNG that says it is an animation of 0 frames: Pillow warns about it while it reads."""
    body = b"acTL" + bytes(8)
    chunk = struct.pack(">I", 8) + body + struct.pack(">I", zlib.crc32(body))
    data = file(quads()).getvalue()
    return io.BytesIO(data[:33] + chunk + data[33:])


def test_warnings_stay_inside_this_thread_only() -> None:
    with pytest.warns(UserWarning), Image.open(odd_png()) as image:  # the file does make Pillow warn
        image.load()
    stop, heard = threading.Event(), []

    def keep_preparing() -> None:
        while not stop.is_set():
            prepare(odd_png())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prepare(odd_png())
        assert not caught
        worker = threading.Thread(target=keep_preparing)
        worker.start()
        for _ in range(20):
            warnings.warn_explicit("mine", UserWarning, "x.py", 1, module="PIL.Image")
        stop.set()
        worker.join()
        heard = [str(w.message) for w in caught]
    assert heard.count("mine") == 20 and len(heard) == 20
