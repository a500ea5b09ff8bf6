"""The embedded demo base: what ships, that the documented hashes are those of the files, and that it does its one trick."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from realchar.catalog import load_base
from realchar.engine.denoise import Branch
from realchar.engine.families.qwen_image_edit import QwenImageEdit
from realchar.engine.pipeline import Engine
from realchar.presets import NEGATIVE, PROMPTS
from realchar.schema import Decoded, EditRequest
from tests.tiny import DEMO
from tools.demo_base import pairs, train_transformer, train_vae
from tools.demo_base.evaluate import psnr, ssim

DATA = Path(__file__).parent / "data"
README = DEMO.parent / "README.md"
MAX_BYTES = 20_000_000


def picture(name: str) -> Image.Image:
    with Image.open(DATA / f"pair_{name}.webp") as image:
        return image.convert("RGB")


def convert(cfg: float, steps: int = 12) -> Image.Image:
    engine = Engine.load(load_base(DEMO), "cpu")
    request = EditRequest(PROMPTS["base"], NEGATIVE, steps=steps, cfg=cfg, seed=0)
    events = list(engine.run(request, picture("toon"), (0, 0, 256, 256), []))
    assert isinstance(events[-1], Decoded)
    return events[-1].image


def test_it_is_small_and_safetensors_only() -> None:
    files = [file for file in DEMO.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= MAX_BYTES
    assert {file.suffix for file in files} == {".json", ".safetensors"}


def test_the_documented_hashes_are_those_of_the_files() -> None:
    documented = dict(
        re.findall(r"^\| `(demo/\S+\.safetensors)` \|.*\| `([0-9a-f]{64})` \|$", README.read_text("utf-8"), re.M)
    )
    found = {
        file.relative_to(DEMO.parent).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in DEMO.rglob("*.safetensors")
    }
    assert documented == found


def test_it_says_that_it_is_trained_and_where_its_limits_are() -> None:
    own = json.loads((DEMO / "realchar.json").read_text(encoding="utf-8"))
    assert own["trained"] is True and own["demo"] is True
    assert own["long_edge"] == 256 and "Qwen-Image-Edit-2511" in own["notice"]
    config = json.loads((DEMO / "vae" / "config.json").read_text(encoding="utf-8"))
    assert min(config["latents_std"]) > 0.1 and config["latents_std"] != [1.0] * 16  # measured, not the default


def test_a_drawing_comes_out_closer_to_its_photo_rendering() -> None:
    drawing, photo = picture("toon"), picture("real")
    result = convert(cfg=7.0)
    assert psnr(result, photo) > psnr(drawing, photo) + 1.5
    assert ssim(result, photo) > ssim(drawing, photo)


def test_guidance_does_not_burn_the_colours() -> None:
    mild, strong = (np.asarray(convert(cfg, steps=5), dtype=float) for cfg in (1.0, 9.0))
    assert np.abs(mild.mean((0, 1)) - strong.mean((0, 1))).max() < 8  # of 255, each channel
    assert abs(strong.std() / mild.std() - 1) < 0.15


def test_training_never_sees_the_held_out_pairs(tmp_path: Path) -> None:
    for index in range(pairs.HELD_OUT + 6):
        (tmp_path / f"{index:05d}_toon.webp").touch()
        if index != 3:  # a drawing whose photo rendering is missing is no pair
            (tmp_path / f"{index:05d}_real.webp").touch()
    training, held_out = pairs.training(tmp_path), pairs.held_out(tmp_path)
    assert [file.name[:5] for file in training] == ["00000", "00001", "00002", "00004", "00005"]
    assert len(held_out) == pairs.HELD_OUT and not set(training) & set(held_out)


def test_similarity_is_one_for_the_same_picture_and_falls_with_noise() -> None:
    photo = picture("real")
    noise: Any = np.random.default_rng(0).normal(0, 20, (256, 256, 3))
    noisy = Image.fromarray((np.asarray(photo) + noise).clip(0, 255).astype(np.uint8), "RGB")
    assert ssim(photo, photo) == pytest.approx(1.0)
    assert 0.2 < ssim(photo, noisy) < 0.9
    assert psnr(photo, noisy) == pytest.approx(22.1, abs=1.0)  # 20 log10(255 / 20), less what is clipped


def test_augmentation_treats_both_pictures_of_a_pair_alike() -> None:
    picture_ = torch.rand(3, 1, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    out = pairs.augment(picture_.expand(-1, 2, -1, -1, -1).contiguous(), torch.Generator().manual_seed(1))
    assert out.shape == (3, 2, 3, 32, 32) and torch.equal(out[:, 0], out[:, 1])
    assert (out[:, 0] - picture_[:, 0]).abs().max() > 0.1


def test_training_sees_what_the_engine_computes() -> None:
    family: Any = QwenImageEdit.load(DEMO, torch.device("cpu"), torch.float32)
    small = picture("toon").resize((64, 64))
    trainer = train_transformer.Trainer.__new__(train_transformer.Trainer)
    trainer.net, trainer.device = family.transformer, torch.device("cpu")
    trainer.marks = {(4, 4): (torch.arange(32) >= 16).int()[None]}
    with torch.inference_mode():
        reference = family.encode_image(small)
        with train_vae.planar():
            mean, _ = train_vae.encode(family.vae, reference.pixels)
            pixels = train_vae.decode(family.vae, mean).clamp(-1, 1)
        latents = (mean - family._mean[:, :, 0]) / family._std[:, :, 0]
        assert torch.allclose(latents, reference.latents, atol=1e-3)
        assert torch.allclose(pixels, family.decode(reference.latents), atol=1e-3)
        assert torch.equal(train_transformer.pack(reference.latents), reference.tokens)
        embeds = family.encode_prompt(small, "Keep the drawing.")
        noise = family.noise(reference.shape, seed=0)
        sigma = torch.tensor([0.7])
        ours = trainer.predict(family.unpack(noise, reference.shape), reference.latents, sigma, embeds)
        run = family.velocities([Branch(noise, reference.tokens, embeds, sigma, (reference.shape,) * 2)])
        velocity = returned(run)[0]
    assert velocity.abs().max() > 0.5
    assert torch.allclose(ours, velocity, atol=1e-3)


def returned(run: Generator[None, None, list[torch.Tensor]]) -> list[torch.Tensor]:
    while True:
        try:
            next(run)
        except StopIteration as end:
            values: list[torch.Tensor] = end.value
            return values
