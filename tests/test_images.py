"""Preprocessing: the specimens, sizes, orientation, margins, speed."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from realchar.errors import InvalidInput
from realchar.images import NATIVE_AREA, PrepareOptions, prepare, rejection
from tests.pictures import P3, QUADS, are_quads, at, close, codes, file, painting, quads, refused, rgb_profile

CASES = next((p / "shared/cases" for p in Path(__file__).resolve().parents if (p / "shared/cases").is_dir()), None)
SPECIMENS: list[dict[str, Any]] = (
    json.loads((CASES / "expected.json").read_text(encoding="utf-8"))["images"] if CASES else []
)

# ---- the specimens


@pytest.mark.skipif(CASES is None, reason="the specimens are not beside this checkout (../shared/cases)")
@pytest.mark.parametrize("case", SPECIMENS, ids=[case["file"][7:40] for case in SPECIMENS])
def test_specimen(case: dict[str, Any]) -> None:
    assert CASES is not None
    if case["action"] == "reject":
        assert rejection(refused(CASES / case["file"]))["action"] == "reject"
        return
    try:
        prepared = prepare(CASES / case["file"])
    except InvalidInput:
        assert case["action"] == "either"
        return
    picture = prepared.picture
    assert picture.mode == "RGB"
    assert close(picture.size, tuple(case["out_size"]), case["size_tol"])
    for spot in case.get("pixels", []):
        assert close(at(picture, *spot["at"]), tuple(spot["rgb"]), spot["tol"]), spot
    for channel, least in case.get("channel_min", {}).items():
        assert np.asarray(picture.getchannel(channel)).min() >= least
    assert len(picture.getcolors(1 << 24) or []) >= case.get("distinct_min", 1)
    if "all_rgb" in case:
        wanted = np.array(case["all_rgb"]["rgb"])
        assert np.abs(np.asarray(picture).astype(int) - wanted).max() <= case["all_rgb"]["tol"]
    for text in case.get("output_must_not_hold", []):
        assert text.encode() not in file(picture).getvalue()


# ---- size, grid, padding


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        ((2400, 3200), PrepareOptions(), (768, 1024)),
        ((500, 400), PrepareOptions(), (500, 400)),
        ((500, 400), PrepareOptions(long_edge=256), (256, 205)),
        ((500, 400), PrepareOptions(area=NATIVE_AREA), (1145, 916)),
        ((2000, 10), PrepareOptions(), (1024, 6)),
        ((200, 1), PrepareOptions(), (200, 1)),
    ],
)
def test_size_policies(size: tuple[int, int], options: PrepareOptions, expected: tuple[int, int]) -> None:
    assert prepare(file(Image.new("RGB", size, "teal")), options).picture.size == expected


@pytest.mark.parametrize("size", [(1, 1), (300, 200), (1023, 767), (64, 32), (33, 95)])
def test_padding_repeats_edges_and_crops_back(size: tuple[int, int]) -> None:
    prepared = prepare(file(painting(*size)))
    assert prepared.padded.width % 32 == 0 and prepared.padded.height % 32 == 0
    assert max(a - b for a, b in zip(prepared.padded.size, size, strict=True)) < 32
    assert prepared.padded.crop(prepared.box).tobytes() == prepared.picture.tobytes()
    left, top, _, _ = prepared.box
    assert prepared.padded.getpixel((0, 0)) == prepared.padded.getpixel((left, top))
    assert ("pad" in codes(prepared)) == (prepared.padded.size != size)
    assert prepared.report["padded"] == list(prepared.padded.size)


@pytest.mark.parametrize(
    ("size", "worked", "padded"),
    [((256, 256), (352, 352), (352, 352)), ((100, 61), (352, 215), (352, 224)), ((352, 90), (352, 90), (352, 96))],
)
def test_small_pictures_are_enlarged_for_the_model_alone(
    size: tuple[int, int], worked: tuple[int, int], padded: tuple[int, int]
) -> None:
    source = painting(*size)
    prepared = prepare(file(source), PrepareOptions(long_edge=352, work_edge=352))
    assert prepared.picture.size == size and prepared.picture.tobytes() == source.tobytes()
    left, top, right, bottom = prepared.box
    assert (right - left, bottom - top) == worked and prepared.padded.size == padded
    assert ("enlarge" in codes(prepared)) == (worked != size)
    returned = prepared.returned(prepared.padded.crop(prepared.box))
    assert returned.size == size and psnr(returned, source) > (90 if worked == size else 30)
    small = prepare(file(painting(800, 400)), PrepareOptions(long_edge=352, work_edge=352))
    assert small.padded.size == (352, 192) and "enlarge" not in codes(small)


def test_report_is_json_in_the_agreed_shape() -> None:
    report = prepare(file(painting(1500, 1000), "WEBP")).report
    assert json.loads(json.dumps(report)) == report
    assert report["source"] == {"format": "WEBP", "mode": "RGB", "size": [1500, 1000]}
    assert report["prepared"] == {"mode": "RGB", "size": [1024, 683]}
    assert report["action"] == "accept" and report["reason"] is None


@pytest.mark.parametrize("name", ["long_edge", "area", "work_edge", "multiple", "max_megapixels"])
def test_options_are_checked(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        PrepareOptions(**dict[str, Any]({name: 0}))


# ---- orientation, frames, metadata


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("value", [2, 3, 4, 5, 6, 7, 8])
def test_orientation(kind: str, value: int) -> None:
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[value]  # Image.Transpose members that store it turned
    stored = quads(800, 600).transpose(Image.Transpose(undo))
    exif = Image.Exif()
    exif[0x0112] = value
    prepared = prepare(file(stored, kind, exif=exif), PrepareOptions(long_edge=128))
    assert prepared.picture.size == (128, 96) and are_quads(prepared.picture, 25)
    assert prepared.report["source"]["size"] == [800, 600] and "exif" in codes(prepared)
    resized = next(note for note in prepared.report["notes"] if note["code"] == "resize")
    assert (resized["w"], resized["pw"], resized["ph"]) == (800, 128, 96)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF", "MPO"])
def test_first_frame(kind: str) -> None:
    stream = file(quads(), kind, save_all=True, append_images=[Image.new("RGB", (96, 64), "white")])
    prepared = prepare(stream)
    assert are_quads(prepared.picture, 40) and "frame" in codes(prepared)


def test_no_metadata_in_the_result() -> None:
    exif = Image.Exif()
    exif[0x010E] = "SECRET words"
    exif.get_ifd(0x8825).update({1: "N", 2: (52.0, 31.0, 12.0)})
    text = PngImagePlugin.PngInfo()
    text.add_text("parameters", "SECRET prompt")
    text.add_itxt("XML:com.adobe.xmp", "<x>SECRET</x>")
    for stream in (
        file(quads(), exif=exif, pnginfo=text, icc_profile=rgb_profile(P3)),
        file(quads(), "JPEG", exif=exif, comment=b"SECRET"),
        file(quads(), "WEBP", exif=exif, xmp=b"SECRET"),
    ):
        prepared = prepare(stream)
        for image in (prepared.picture, prepared.padded):
            assert image.info == {} and not image.getexif()
            written = file(image).getvalue()
            assert not any(chunk in written for chunk in (b"SECRET", b"eXIf", b"tEXt", b"iTXt", b"iCCP"))
        assert "SECRET" not in json.dumps(prepared.report)


# ---- margins


def banner(left: int, right: int, margin: Any = "white", width: int = 500, height: int = 400) -> Image.Image:
    image = Image.new("RGB", (left + width + right, height), margin)
    image.paste(painting(width, height), (left, 0))
    return image


@pytest.mark.parametrize(("left", "right"), [(400, 300), (700, 0), (0, 700)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("turn", [False, True])
def test_margins_are_trimmed(left: int, right: int, kind: str, turn: bool) -> None:
    image = banner(left, right)
    image = image.transpose(Image.Transpose.ROTATE_90) if turn else image
    prepared = prepare(file(image, kind))
    long, short = (prepared.picture.size[::-1]) if turn else prepared.picture.size
    assert short == 400 and 500 <= long <= 530  # JPEG leaves some ringing beside the content
    text = next(note["text"] for note in prepared.report["notes"] if note["code"] == "trim")
    assert "auto-cropped" in text
    assert prepare(file(image, kind), PrepareOptions(trim=False)).picture.size != prepared.picture.size


def test_margins_of_large_and_slim_content() -> None:
    large = prepare(file(banner(1600, 1600, "black", 1500, 1200), "JPEG", quality=95)).picture
    assert abs(large.width - 1024) <= 1 and abs(large.height - 819) <= 12
    whole = painting(1500, 1200).resize(large.size, Image.Resampling.LANCZOS)
    difference = np.asarray(large).astype(float) - np.asarray(whole)
    assert np.abs(difference).mean() < 12  # trimmed at full detail, not after a reduced decode
    slim = prepare(file(banner(500, 500, "white", 60, 400))).picture
    assert slim.size == (200, 400)  # margin is given back: the cut must not make it too tall instead
    assert np.abs(np.asarray(slim)[:, 70:130].astype(int) - np.asarray(painting(60, 400))).max() == 0


def stripes() -> Image.Image:
    image = Image.new("RGB", (600, 200), "white")
    for i, color in enumerate(QUADS):
        image.paste(color, (i * 150, 0, i * 150 + 150, 200))
    return image


def gradient_then_content() -> Image.Image:
    image = Image.fromarray(np.tile(np.linspace(60, 250, 900).astype(np.uint8), (300, 1))).convert("RGB")
    image.paste(painting(200, 300), (350, 0))
    return image


@pytest.mark.parametrize(
    "image",
    [
        Image.new("RGB", (900, 300), (12, 130, 240)),
        painting(900, 300),
        stripes(),
        Image.fromarray(np.tile(np.linspace(0, 255, 900).astype(np.uint8), (300, 1))),
        gradient_then_content(),
        banner(100, 100, "white", 600, 500),
    ],
    ids=["one colour", "no margins", "stripes", "gradient", "gradient with content", "not elongated"],
)
def test_left_alone(image: Image.Image) -> None:
    prepared = prepare(file(image))
    assert "trim" not in codes(prepared) and prepared.picture.size == image.size


def test_transparent_margins_are_margins() -> None:
    image = Image.new("RGBA", (1500, 400), (0, 0, 0, 0))
    image.paste(painting(500, 400), (500, 0))
    assert prepare(file(image)).picture.size == (500, 400)


# ---- speed and quality


def psnr(a: Image.Image, b: Image.Image) -> float:
    error = (np.asarray(a).astype(float) - np.asarray(b)) ** 2
    return float(10 * np.log10(255**2 / max(error.mean(), 1e-9)))


@pytest.mark.parametrize("size", [(3001, 2003), (2048, 1536), (4100, 2100)])
def test_reduced_jpeg_decode_is_as_good(size: tuple[int, int]) -> None:
    stream = file(painting(*size), "JPEG", quality=92)
    got = prepare(stream, PrepareOptions(long_edge=500)).picture
    with Image.open(io.BytesIO(stream.getvalue())) as full:
        assert psnr(got, full.convert("RGB").resize(got.size, Image.Resampling.LANCZOS)) > 38


@pytest.mark.slow
def test_24_megapixels_in_time() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 6, (4000, 6000, 3)).astype(np.float32)
    image = Image.fromarray((np.asarray(painting(6000, 4000)) + noise).clip(0, 255).astype(np.uint8))
    stream = file(image, "JPEG", quality=92)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert prepare(stream).picture.size == (1024, 683)
        times.append(time.perf_counter() - start)
    assert min(times) < 1.2
