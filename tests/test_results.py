"""Result files: parameters inside and read back, the stamp, atomic writing, nothing of the input's metadata."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from realchar import results
from realchar.errors import InvalidInput, StorageError
from realchar.results import (
    check_target,
    parameters,
    parameters_text,
    read_params,
    read_request,
    save,
    stamped,
    version_label,
)
from realchar.schema import MACHINE_CHOICES, EditRequest, LoraRef
from realchar.watermark import stamp, stamp_text

REQUEST = EditRequest(
    prompt="把角色变成照片, “quoted”\nsecond line: x",
    negative_prompt="anime, 3d: render",
    steps=30,
    cfg=5.0,
    seed=4_294_967_295,
    loras=(LoraRef("sub/look_v2511_0003056", 0.8),),
)
FACTS: dict[str, Any] = {
    "base": {"title": "Demo base", "fingerprint": "abc", "demo": True},
    "loras": [{"name": "sub/look_v2511_0003056", "strength": 0.8, "version": 3056, "sha256": "f" * 64}],
}


def picture(size: tuple[int, int] = (320, 200)) -> Image.Image:
    return Image.effect_noise(size, 60).convert("RGB")


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".jpeg", ".webp", ".PNG"])
def test_every_format_gives_all_parameters_back(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"结果 é{suffix}"
    params = parameters(REQUEST, (320, 200), FACTS)
    save(picture(), target, params)
    assert read_params(target) == json.loads(json.dumps(params))
    assert read_request(target) == REQUEST


def test_the_text_is_what_image_browsers_know(tmp_path: Path) -> None:
    target = tmp_path / "x.png"
    save(picture(), target, parameters(REQUEST, (320, 200), FACTS))
    with Image.open(target) as image:
        text = image.text["parameters"]  # type: ignore[attr-defined]
    prompt, rest = text.split("\nNegative prompt: ")
    assert prompt == REQUEST.prompt
    assert rest.split("\n")[1] == (
        "Steps: 30, Sampler: Euler (flow matching), CFG scale: 5.0, Seed: 4294967295, Size: 320x200, Model hash: abc, "
        'Model: Demo base, Lora hashes: "sub/look_v2511_0003056: ffffffffffff", Lora strengths: 0.8, '
        f"Size policy: safe, Preset: custom, Version: RealCharacters {parameters(REQUEST, (1, 1), {})['version']}"
    )
    assert parameters_text(parameters(REQUEST, (320, 200), FACTS)) == text


def test_pixels_are_kept_by_png_and_webp(tmp_path: Path) -> None:
    image = picture()
    for name in ("x.png", "x.webp"):
        save(image, tmp_path / name, parameters(REQUEST, image.size, FACTS))
        with Image.open(tmp_path / name) as again:
            assert np.array_equal(np.asarray(again.convert("RGB")), np.asarray(image))


def test_targets_that_can_not_be_are_told_beforehand(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"end it in \.png"):
        check_target(tmp_path / "x.bmp")
    with pytest.raises(InvalidInput, match="is a folder"):
        (tmp_path / "d.png").mkdir()
        check_target(tmp_path / "d.png")
    check_target(tmp_path / "new" / "x.png")
    assert (tmp_path / "new").is_dir() and list((tmp_path / "new").iterdir()) == []


def test_a_full_disk_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out" / "x.png"
    save(picture(), target)
    old = target.read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"No space left on device.*free some space"):
        save(picture((10, 10)), target)
    assert target.read_bytes() == old
    assert [p.name for p in target.parent.iterdir()] == ["x.png"]


@pytest.mark.parametrize(
    "block",
    [
        "not json",
        "[1, 2]",
        "{}",
        '{"app": "RealCharacters"}',
        '{"app": "RealCharacters", "request": {"prompt": 5}}',
        '{"app": "RealCharacters", "request": {"prompt": "x", "steps": "many"}}',
        '{"app": "RealCharacters", "request": {"prompt": "x", "loras": [{"path": "/etc/passwd"}]}}',
        '{"app": "RealCharacters", "request": {"prompt": "x", "loras": 7}}',
        '{"app": "RealCharacters", "request": {"negative_prompt": "x"}}',
        "[" * 100_000,
    ],
)
def test_foreign_or_forged_blocks_are_no_settings(tmp_path: Path, block: str) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_itxt("realcharacters", block)
    picture().save(tmp_path / "x.png", pnginfo=info)
    assert read_request(tmp_path / "x.png") is None


def test_files_that_are_no_pictures_carry_no_settings(tmp_path: Path) -> None:
    for name, content in {"a.png": b"", "b.png": b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "c.jpg": b"hello"}.items():
        (tmp_path / name).write_bytes(content)
        assert read_request(tmp_path / name) is None
    assert read_request(tmp_path / "missing.png") is None


def test_the_stamp_names_the_version() -> None:
    text = stamp_text(REQUEST, version_label(FACTS["loras"]), (1024, 576))
    assert text == "v3056 | CFG=5.0 | Steps=30 | 1024x576"
    assert version_label([]) == "base"
    unnumbered = [{"name": "写真", "version": None, "sha256": "12345678" + "0" * 56}]
    assert version_label(unnumbered) == "12345678"
    assert version_label(FACTS["loras"] * 2) == "v3056+1"


@pytest.mark.parametrize("colour", ["white", "black", "gray", "red"])
@pytest.mark.parametrize("size", [(256, 256), (1024, 576), (128, 700), (2048, 300)])
def test_the_stamp_is_legible_in_the_corner_and_nowhere_else(colour: str, size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, colour)
    after = stamp(image, "v3056 | CFG=5.0 | Steps=30 | 1024x576")
    changed = np.abs(np.asarray(after, dtype=int) - np.asarray(image, dtype=int)).sum(2) > 0
    rows, columns = np.where(changed)
    assert rows.min() >= size[1] / 2 - 1 and rows.max() < size[1] and columns.max() < size[0]
    assert columns.max() > size[0] * 0.9
    region = np.asarray(after.convert("L"), dtype=int)[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    dark, light = np.percentile(region, 10), region.max()
    assert light - dark > 90 and light >= 250  # white letters on a ground that is dark on any picture
    assert np.asarray(image).std() == np.asarray(Image.new("RGB", size, colour)).std()  # the original is untouched


def test_a_picture_too_small_for_legible_text_gets_none() -> None:
    for size in ((1, 1), (20, 900), (900, 12)):
        image = picture(size)
        assert np.array_equal(np.asarray(stamp(image, "v1 | CFG=5.0 | Steps=30 | 1024x576")), np.asarray(image))


def test_stamped_uses_the_block(tmp_path: Path) -> None:
    image = picture()
    after = stamped(image, parameters(REQUEST, image.size, FACTS))
    assert after.size == image.size and not np.array_equal(np.asarray(after), np.asarray(image))


def test_every_setting_is_looked_at_when_a_result_is_read() -> None:
    fields = [field.name for field in dataclasses.fields(EditRequest)]
    assert [*results._KINDS, *MACHINE_CHOICES] == fields


def test_a_result_asks_no_machine_for_what_another_one_chose(tmp_path: Path) -> None:
    request = EditRequest("p", offload="model", vram=6.5, strategy="batch", steps=3)
    params = results.parameters(request, (32, 32), {"plan": {"mode": "model", "budget_gb": 6.5}})
    assert not set(MACHINE_CHOICES) & set(params["request"]) and params["plan"]["budget_gb"] == 6.5
    file = tmp_path / "x.png"
    results.save(Image.new("RGB", (32, 32)), file, params)
    assert results.read_request(file) == EditRequest("p", steps=3)
    results.save(Image.new("RGB", (32, 32)), file, params | {"request": request.to_json()})  # as no version wrote it
    assert results.read_request(file) == EditRequest("p", steps=3)
