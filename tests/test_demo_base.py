"""The embedded demo base and its LoRA versions: what ships, that the manifest is true, and that each does its trick."""

from __future__ import annotations

import io
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from realchar.catalog import damaged_files, load_base
from realchar.doctor import Report, check_models
from realchar.engine import still_vae
from realchar.engine.denoise import Branch
from realchar.engine.families.qwen_image_edit import QwenImageEdit
from realchar.engine.pipeline import Engine
from realchar.engine.preview import fit_preview
from realchar.engine.work import result_of
from realchar.errors import ModelError
from realchar.images import prepare
from realchar.presets import NEGATIVE, PROMPTS
from realchar.requests import prepare_options
from realchar.schema import Decoded, EditRequest, LoraRef
from realchar.settings import Settings
from realchar.versions import newest_weights, scan_weights
from tests.tiny import DEMO
from tools.demo_base import architecture, manifest, pairs, train_transformer, train_vae
from tools.demo_base.evaluate import detail, psnr, ssim
from tools.demo_base.latents import Cache

DATA = Path(__file__).parent / "data"
WEIGHTS = DEMO.parent
VERSIONS = [info.path for info in sorted(scan_weights(WEIGHTS), key=lambda info: info.version or 0)]
PAIRS = ("01001", "01011", "01041", "01049")  # of the held-out ones

pytestmark = pytest.mark.usefixtures("two_threads")


def picture(name: str, index: str = "01011") -> Image.Image:
    with Image.open(DATA / f"{index}_{name}.webp") as image:
        return image.convert("RGB")


@cache
def engine() -> Engine:
    return Engine.load(load_base(DEMO), "cpu")


def convert(
    drawing: Image.Image, cfg: float = 4.0, steps: int = 8, lora: Path | None = None, prompt: str = PROMPTS["base"]
) -> Image.Image:
    loras = () if lora is None else (LoraRef(lora.stem, 1.0),)
    request = EditRequest(prompt, NEGATIVE, steps=steps, cfg=cfg, seed=0, loras=loras)
    file = io.BytesIO()
    drawing.save(file, "PNG")
    prepared = prepare(file, prepare_options(engine().base, "safe", None))  # which enlarges it, as in the app
    events = list(engine().run(request, prepared.padded, prepared.box, [] if lora is None else [lora]))
    assert isinstance(events[-1], Decoded)
    return prepared.returned(events[-1].image)


@cache
def by_the_newest(index: str) -> Image.Image:
    """Return what the preset Daily makes of a drawing."""
    return convert(picture("toon", index), cfg=7.0, steps=20, lora=VERSIONS[-1])


def test_what_ships_is_small_and_the_manifest_is_true() -> None:
    found = json.loads((WEIGHTS / "manifest.json").read_text(encoding="utf-8"))
    assert found == manifest.collect(WEIGHTS)  # which refuses more than 48 MB
    assert damaged_files(WEIGHTS) == []
    assert {file.suffix for file in DEMO.rglob("*") if file.is_file()} == {".json", ".safetensors"}
    readme = (WEIGHTS / "README.md").read_text(encoding="utf-8")
    assert manifest.table(found) in readme


def test_doctor_names_a_shipped_file_that_was_changed(tmp_path: Path) -> None:
    shutil.copytree(WEIGHTS, tmp_path / "shipped")
    settings = Settings(base=str(tmp_path / "shipped" / "demo"), weights=tmp_path / "shipped")
    whole = check_models(settings, Report({}))[0]
    assert whole.state == "ok" and "manifest" in whole.text
    file = tmp_path / "shipped" / "demo" / "vae" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    changed = check_models(settings, Report({}))[0]
    assert changed.state == "bad" and "demo/vae/diffusion_pytorch_model.safetensors" in changed.text


@pytest.mark.parametrize("text", ["", "[]", '{"files": []}', '{"files": {"a": {}}}', '{"files": {"a": 3}}', "\udcff"])
def test_a_manifest_of_another_form_is_named(tmp_path: Path, text: str) -> None:
    assert damaged_files(tmp_path) is None
    (tmp_path / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert damaged_files(tmp_path) == ["manifest.json"]


@pytest.mark.parametrize("preview", ["abc", 3, [[1, 2]], [["a", "b", "c"]], [[1, 2, 3], [1]]])
def test_a_preview_matrix_that_is_none_is_refused(tmp_path: Path, preview: Any) -> None:
    shutil.copytree(DEMO, tmp_path / "base", ignore=shutil.ignore_patterns("*.safetensors"))
    own = json.loads((DEMO / "realchar.json").read_text(encoding="utf-8")) | {"preview": preview}
    (tmp_path / "base" / "realchar.json").write_text(json.dumps(own), encoding="utf-8")
    with pytest.raises(ModelError, match="copy it again"):
        load_base(tmp_path / "base")


def test_limits_that_are_no_numbers_are_refused_and_an_empty_component_is_missing(tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "base", ignore=shutil.ignore_patterns("*.safetensors"))
    own = tmp_path / "base" / "realchar.json"
    for broken in ('{"long_edge": "x"}', "[" * 100_000):
        own.write_text(broken, encoding="utf-8")
        with pytest.raises(ModelError, match="copy"):
            load_base(tmp_path / "base")
    own.write_text('{"title": 5, "notice": [1]}', encoding="utf-8")
    assert load_base(tmp_path / "base").title == "5"
    for file in (tmp_path / "base" / "tokenizer").iterdir():
        file.unlink()
    with pytest.raises(ModelError, match="lacks tokenizer"):
        load_base(tmp_path / "base")


def test_a_version_that_is_not_whole_is_not_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "versions"
    folder.mkdir()
    for file in VERSIONS[:2]:
        shutil.copy(file, folder)
    part = folder / VERSIONS[1].name
    part.write_bytes(part.read_bytes()[:-1])
    newest = newest_weights(folder, load_base(DEMO))
    assert newest is not None and newest.name == VERSIONS[0].stem


def test_a_manifest_is_not_written_where_the_page_lacks_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["manifest", "--weights", str(tmp_path)])
    with pytest.raises(SystemExit, match="marks"):
        manifest.main()
    assert not (tmp_path / "manifest.json").exists()


def test_it_says_that_it_is_trained_and_where_its_limits_are() -> None:
    own = json.loads((DEMO / "realchar.json").read_text(encoding="utf-8"))
    assert own["trained"] is True and own["demo"] is True
    assert own["long_edge"] == own["work_edge"] == architecture.SIDE and "Qwen-Image-Edit-2511" in own["notice"]
    config = json.loads((DEMO / "vae" / "config.json").read_text(encoding="utf-8"))
    assert min(config["latents_std"]) > 0.1 and config["latents_std"] != [1.0] * 16  # measured, not the default


def test_the_versions_are_ordinary_files_and_the_newest_is_chosen() -> None:
    assert len(VERSIONS) == 3
    newest = newest_weights(WEIGHTS, load_base(DEMO))
    assert newest is not None and newest.path == VERSIONS[-1]


@pytest.mark.slow
def test_each_version_comes_closer_to_the_photo_rendering() -> None:
    """Means over the pairs here; the base alone goes part of the way."""
    some = PAIRS[::2]
    scores = [np.mean([psnr(picture("toon", index), picture("real", index)) for index in some])]
    for lora in (None, *VERSIONS):
        results = [(convert(picture("toon", index), lora=lora), picture("real", index)) for index in some]
        scores.append(np.mean([psnr(*pair) for pair in results]))
    assert scores == sorted(scores)
    assert scores[1] > scores[0] + 2 and scores[-1] > scores[0] + 6


@pytest.mark.slow
def test_the_newest_version_keeps_the_scene_and_the_detail() -> None:
    drawing, photo = picture("toon"), picture("real")
    result = by_the_newest("01011")
    assert ssim(result, photo) > ssim(drawing, photo) + 0.05
    assert 0.62 < detail(result) / detail(photo) < 1.3  # the softest of the four pairs here


@pytest.mark.slow
def test_the_newest_version_is_as_sharp_as_is_said() -> None:
    some = ("01011", "01041")
    results = [by_the_newest(index) for index in some]
    ratios = [detail(result) / detail(picture("real", index)) for result, index in zip(results, some, strict=True)]
    assert 0.7 < np.mean(ratios) < 1.3


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, VERSIONS[-1]], ids=lambda lora: lora.stem if lora else "base")
def test_the_prompt_decides_what_is_done(lora: Path | None) -> None:
    drawing = picture("toon")
    prompts = ("Keep the drawing.", PROMPTS["base"])
    kept, changed = (convert(drawing, cfg=1.0, steps=4, prompt=prompt, lora=lora) for prompt in prompts)
    assert psnr(kept, drawing) > psnr(changed, drawing) + 3 and psnr(kept, drawing) > 24


def test_a_photo_stays_a_photo() -> None:
    photo = picture("real")
    assert psnr(convert(photo, cfg=1.0), photo) > 24


def test_the_same_seed_gives_the_same_picture() -> None:
    first, second = (convert(picture("toon"), steps=2, lora=VERSIONS[-1]) for _ in range(2))
    assert first.tobytes() == second.tobytes()


@pytest.mark.slow
def test_guidance_does_not_burn_the_colours() -> None:
    mild, strong = (np.asarray(convert(picture("toon"), cfg, steps=5), dtype=float) for cfg in (1.0, 9.0))
    assert np.abs(mild.mean((0, 1)) - strong.mean((0, 1))).max() < 8  # of 255, each channel
    assert abs(strong.std() / mild.std() - 1) < 0.15


def test_the_vae_gives_pictures_back() -> None:
    pixels = pairs.read([DATA / f"{index}_toon.webp" for index in PAIRS])
    with still_vae.planar():
        drawings, photos = train_vae.reconstruction_psnr(pixels, engine().family.vae)
    assert drawings > 31 and photos > 33


def test_the_stored_preview_matrix_is_as_good_as_one_fitted_on_the_job() -> None:
    reference = engine().family.encode_image(picture("toon"))
    rows = torch.tensor(load_base(DEMO).preview)
    small = torch.nn.functional.avg_pool2d(reference.pixels, 8).flatten(2)[0].T
    columns = torch.cat([reference.latents.flatten(2)[0].T, torch.ones(len(small), 1)], 1)
    errors = [
        float((columns @ m - small).abs().mean()) for m in (rows, fit_preview(reference.latents, reference.pixels))
    ]
    assert rows.shape == (17, 3) and errors[0] < 0.1 and errors[0] < 4 * errors[1]


def test_training_sees_what_the_engine_computes() -> None:
    family: Any = QwenImageEdit.load(DEMO, torch.device("cpu"), torch.float32)
    small = picture("toon").resize((64, 64))
    trainer = train_transformer.Trainer(family.transformer, Cache(torch.empty(0), torch.empty(0)), {})
    with torch.inference_mode():
        reference = family.encode_image(small)
        with still_vae.planar():
            mean, _ = still_vae.encode(family.vae, reference.pixels)
            pixels = still_vae.decode(family.vae, mean).clamp(-1, 1)
        latents = (mean - family._mean[:, :, 0]) / family._std[:, :, 0]
        assert torch.allclose(latents, reference.latents, atol=1e-3)
        assert torch.allclose(pixels, family.decode(reference.latents), atol=1e-3)
        tokens = train_transformer.pack(reference.latents)
        assert torch.equal(tokens, reference.tokens)
        assert torch.equal(train_transformer.unpack(tokens, reference.latents), reference.latents)
        embeds = result_of(family.encode_prompts(small, ["Keep the drawing."]))[0]
        noise = family.noise(reference.shape, seed=0)
        sigma = torch.tensor([0.7])
        ours = trainer.predict(family.unpack(noise, reference.shape), reference.latents, sigma, embeds)
        run = family.velocities([Branch(noise, reference.tokens, embeds, sigma, (reference.shape,) * 2)])
        velocity = result_of(run)[0]
    assert velocity.abs().max() > 0.5
    assert torch.allclose(ours, velocity, atol=1e-3)
