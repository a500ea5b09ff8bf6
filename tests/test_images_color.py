"""Preprocessing: transparency, bit depths, CMYK, Lab, colour profiles, gray."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageDraw

from realchar.images import PrepareOptions, prepare
from tests.pictures import (
    ADOBE,
    P3,
    QUADS,
    are_quads,
    at,
    close,
    cmyk_profile,
    codes,
    expected_srgb,
    file,
    gamma,
    png16,
    profile,
    quads,
    rgb_profile,
    trns,
    ycck,
)

# ---- colour and depth


def test_alpha_is_on_white_before_resizing() -> None:
    disc = Image.new("RGBA", (2100, 2100), (0, 0, 0, 0))
    ImageDraw.Draw(disc).ellipse((300, 300, 1800, 1800), fill=(255, 0, 0, 255))
    prepared = prepare(file(disc))
    assert np.asarray(prepared.picture)[..., 0].min() >= 250  # hidden black would make a dark fringe
    assert at(prepared.picture, 0.01, 0.01) == (255, 255, 255)
    assert "alpha" in codes(prepared)
    assert "alpha" not in codes(prepare(file(Image.new("RGBA", (64, 64), (9, 8, 200, 255)))))


@pytest.mark.parametrize(
    ("image", "solid"), [(quads(), QUADS[1]), (quads().convert("L"), (119,) * 3), (quads().quantize(8), QUADS[1])]
)
def test_one_transparent_color(image: Image.Image, solid: tuple[int, ...]) -> None:
    prepared = prepare(file(image, transparency=image.getpixel((2, 2))))
    assert at(prepared.picture, 0.1, 0.1) == (255, 255, 255)
    assert close(at(prepared.picture, 0.9, 0.1), solid, 1)
    assert "alpha" in codes(prepared)


def test_16_bit_is_scaled_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 128).astype(">u2")
    gray = np.repeat(ramp[None, :, None], 64, axis=0)
    for samples, kind in ((gray, 0), (gray.repeat(3, axis=2), 2)):
        prepared = prepare(png16(samples, kind))
        got = np.asarray(prepared.picture)[10, :, 0].astype(int)
        assert np.abs(got - ramp.astype(int) / 257).max() <= 1
        assert "bits" in codes(prepared)
    half = np.dstack([np.full_like(gray, 20000), np.full_like(gray, 32768)]).astype(">u2")
    prepared = prepare(png16(half, 4))
    assert close(at(prepared.picture, 0.5, 0.5), (166, 166, 166), 2)
    assert {"alpha", "bits"} <= set(codes(prepared))


def test_transparent_color_in_16_and_4_bits() -> None:
    deep = np.full((64, 64, 3), 30000, ">u2")
    deep[:, :32] = (65535, 0, 65535)
    assert at(prepare(png16(deep, 2, trns(65535, 0, 65535))).picture, 0.1, 0.5) == (255, 255, 255)
    gray = deep[..., :1]
    prepared = prepare(png16(gray, 0, trns(30000)))
    assert at(prepared.picture, 0.9, 0.5) == (255, 255, 255) and "alpha" in codes(prepared)
    packed = np.full((64, 32), 0x33, np.uint8)
    packed[:, 16:] = 0xAA
    picture = prepare(png16(packed, 0, trns(3), depth=4), PrepareOptions(enhance_gray=False)).picture
    assert at(picture, 0.1, 0.5) == (255, 255, 255) and at(picture, 0.9, 0.5) == (170, 170, 170)


@pytest.mark.parametrize(
    ("values", "first", "last"),
    [
        (np.linspace(0, 1, 128, dtype=np.float32), 0, 255),
        (np.linspace(0, 255, 128, dtype=np.float32), 0, 255),
        (np.linspace(0, 0.5, 128, dtype=np.float32), 0, 128),
        (np.linspace(-1000, 3000, 128, dtype=np.float32), 0, 255),
        (np.linspace(0, 65535, 128, dtype=np.int32), 0, 255),
        (np.linspace(0, 200, 128, dtype=np.int32), 0, 200),
        (np.linspace(0, 65535, 128, dtype=np.uint16), 0, 255),
    ],
)
def test_tiff_depths(values: np.ndarray[Any, Any], first: int, last: int) -> None:
    picture = prepare(file(Image.fromarray(np.tile(values, (64, 1))), "TIFF")).picture
    row = np.asarray(picture)[5, :, 0].astype(int)
    assert abs(row[0] - first) <= 1 and abs(row[-1] - last) <= 1
    assert np.abs(row - np.linspace(first, last, 128)).max() <= 1.5


def test_float_without_numbers() -> None:
    values = np.full((64, 64), 0.5, np.float32)
    values[:10] = np.nan
    values[10:20] = np.inf
    prepared = prepare(file(Image.fromarray(values), "TIFF"))
    assert at(prepared.picture, 0.5, 0.05) == (0, 0, 0) and at(prepared.picture, 0.5, 0.9) == (128, 128, 128)
    prepare(file(Image.fromarray(np.full((8, 8), np.nan, np.float32)), "TIFF"))


def test_cmyk_polarities() -> None:
    ink = quads().convert("CMYK")
    ink.paste((0, 0, 0, 0), (40, 20, 60, 40))
    adobe = file(ink, "JPEG", quality=95)
    marker = adobe.getvalue().index(b"\xff\xee")
    no_marker = adobe.getvalue()[:marker] + adobe.getvalue()[marker + 16 :]
    plain = bytearray(file(ink.point(lambda v: 255 - v), "JPEG", quality=95).getvalue())
    del plain[marker : marker + 16]
    for name, source in {
        "adobe": adobe, "no marker, inverted": io.BytesIO(no_marker), "no marker": io.BytesIO(bytes(plain)),
        "ycck": ycck(ink), "tiff": file(ink, "TIFF"),
    }.items():  # fmt: skip
        prepared = prepare(source)
        assert are_quads(prepared.picture, 16), name
        assert close(at(prepared.picture, 0.5, 0.5), (255, 255, 255), 12), name
        assert "cmyk" in codes(prepared)


def test_lab() -> None:
    lab = ImageCms.profileToProfile(
        quads(), ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
    )
    assert lab is not None
    prepared = prepare(file(lab, "TIFF"))
    assert are_quads(prepared.picture, 5) and "lab" in codes(prepared)


@pytest.mark.parametrize("primaries", [P3, ADOBE], ids=["display-p3", "adobe-rgb"])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_icc_to_srgb(primaries: Any, kind: str) -> None:
    color = (200, 110, 60)
    quality = {"quality": 100} if kind in ("JPEG", "WEBP") else {}
    prepared = prepare(file(Image.new("RGB", (96, 64), color), kind, icc_profile=rgb_profile(primaries), **quality))
    assert close(at(prepared.picture, 0.5, 0.5), expected_srgb(color, primaries), 3)
    note = next(note for note in prepared.report["notes"] if note["code"] == "icc")
    assert note["text"] == "Colours converted from Made for a test to sRGB"


def test_icc_of_gray_cmyk_and_wrong_kinds() -> None:
    gray = prepare(file(Image.new("L", (64, 64), 100), icc_profile=profile(b"GRAY", {b"kTRC": gamma(1.0)})))
    assert close(at(gray.picture, 0.5, 0.5), (168, 168, 168), 2) and "icc" in codes(gray)
    ink = Image.new("CMYK", (64, 64), (0, 0, 0, 0))
    ink.paste((0, 0, 0, 255), (0, 0, 32, 64))
    press = prepare(file(ink, "TIFF", icc_profile=cmyk_profile()))
    assert at(press.picture, 0.9, 0.5) == (255, 255, 255) and max(at(press.picture, 0.1, 0.5)) < 8
    assert {"cmyk", "icc"} <= set(codes(press))
    own = prepare(file(quads(), icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()))
    assert "icc" not in codes(own) and at(own.picture, 0.2, 0.2) == QUADS[0]
    for broken in (b"not a profile", rgb_profile(P3)[:200], cmyk_profile()):
        prepared = prepare(file(quads(), icc_profile=broken))
        assert are_quads(prepared.picture, 0)
        assert "ignored" in next(note["text"] for note in prepared.report["notes"] if note["code"] == "icc")


def test_gray_and_contrast() -> None:
    haze = Image.fromarray((110 + 30 * np.sin(np.mgrid[0:128, 0:128][1] / 9)).astype(np.uint8))
    for image in (haze, haze.convert("RGB")):
        prepared = prepare(file(image))
        out = np.asarray(prepared.picture)
        assert (out[..., 0] == out[..., 1]).all() and (out[..., 0] == out[..., 2]).all()
        assert out.std() > np.asarray(haze).std() * 1.2 and "gray" in codes(prepared)
        assert "gray" not in codes(prepare(file(image), PrepareOptions(enhance_gray=False)))
    full = Image.linear_gradient("L")
    assert np.array_equal(np.asarray(prepare(file(full)).picture.getchannel("R")), np.asarray(full))
    assert "gray" in codes(prepare(file(full), PrepareOptions(enhance_gray=True)))
    line_art = Image.new("L", (256, 256), 255)
    ImageDraw.Draw(line_art).line((0, 0, 255, 255), fill=0, width=2)
    assert "gray" not in codes(prepare(file(line_art)))
    assert "gray" not in codes(prepare(file(quads()), PrepareOptions(enhance_gray=True)))
    assert "gray" not in codes(prepare(file(Image.new("L", (64, 64), 90))))
    prepare(file(Image.new("L", (1, 1), 90)), PrepareOptions(enhance_gray=True))
