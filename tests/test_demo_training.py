"""The recipe of the demo base: the held-out split, augmentation, lessons, LoRA files, measuring."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from PIL import Image
from safetensors.torch import load_file

from realchar.engine.blocks import ResidentBlocks
from realchar.engine.lora import AdapterSet
from realchar.engine.weights import WeightSource
from tests.tiny import DEMO
from tools.demo_base import (
    architecture,
    evaluate,
    fused,
    latents,
    lessons,
    metrics,
    pair_files,
    pairs,
    prepared,
    texture,
    train_lora,
)
from tools.demo_base.embeddings import KEEP, PHOTO, UNCONDITIONAL
from tools.demo_base.lessons import Kind
from tools.demo_base.train import Studio
from tools.demo_base.train import main as train_main
from tools.demo_base.train_transformer import EYES_WEIGHT, SETTLED_BELOW, Trainer, emphasis, train, unpack

DATA = Path(__file__).parent / "data"
SMALL = architecture.TRANSFORMER | {"num_layers": 1}
FIRST, KEPT, NEGATIVE = (next(iter(prompts)) for prompts in (PHOTO, KEEP, UNCONDITIONAL))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def opened(file: Path) -> Image.Image:
    with Image.open(file) as image:
        return image.convert("RGB")


def trainer(lesson: lessons.Lesson) -> Trainer:
    torch.manual_seed(0)
    made = Trainer(QwenImageTransformer2DModel(**SMALL), *prepared.stand_in(torch.device("cpu")))
    made.start(lesson, list(made.net.parameters()))
    return made


def test_training_never_sees_the_held_out_pairs(tmp_path: Path) -> None:
    for index in range(pair_files.HELD_OUT + 6):
        (tmp_path / f"{index:05d}_toon.webp").touch()
        if index != 3:  # a drawing whose photo rendering is missing is no pair
            (tmp_path / f"{index:05d}_real.webp").touch()
    training, held_out = pair_files.training(tmp_path), pair_files.held_out(tmp_path)
    assert [file.name[:5] for file in training] == ["00000", "00001", "00002", "00004", "00005"]
    assert len(held_out) == pair_files.HELD_OUT and not set(training) & set(held_out)
    assert len(pair_files.training(tmp_path, more=tmp_path)) == 2 * 5 + pair_files.HELD_OUT


def test_augmentation_treats_both_pictures_of_a_pair_alike() -> None:
    picture = torch.rand(3, 1, 3, 32, 32, generator=seeded()) * 2 - 1
    changed = []
    for seed in range(6):
        out = pairs.augment(picture.expand(-1, 2, -1, -1, -1).contiguous(), seeded(seed))
        assert out.shape == (3, 2, 3, 32, 32) and torch.equal(out[:, 0], out[:, 1])
        changed += ((out[:, 0] - picture[:, 0]).abs().amax((1, 2, 3)) > 0.5).tolist()
    assert 6 < sum(changed) < 18  # some stay whole and as they are


def test_augmentation_crops_inside_the_picture_and_keeps_whole_ones_sharp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "recolour", lambda framed, _draw: framed)
    rows = torch.linspace(-0.9, 0.9, 64).view(1, 1, 1, 64, 1).expand(200, 1, 3, 64, 64)
    framed = pairs.augment(rows, seeded())
    spans = framed[:, 0, 0, :, 32].amax(1) - framed[:, 0, 0, :, 32].amin(1)
    assert 0.5 * 1.7 * pairs.NARROWEST < spans.min() < 1.2 and spans.max() < 1.85
    noise = torch.rand(200, 1, 3, 64, 64, generator=seeded(1)) * 2 - 1
    framed = pairs.augment(noise, seeded())
    whole = sum(bool((framed - noise.flip(-1)).abs().amax((1, 2, 3, 4))[row] < 1e-3) for row in range(200))
    same = int(((framed - noise).abs().amax((1, 2, 3, 4)) < 1e-3).sum())
    assert whole > 20 and same > 20 and 0.25 < (whole + same) / 200 < 0.55


def test_turning_the_hue_keeps_the_grey_and_goes_round() -> None:
    colours = torch.rand(2, 1, 3, 4, 4, generator=seeded())
    colours -= colours.mean(2, keepdim=True)
    third = torch.tensor([2 * torch.pi / 3, 0.3])
    turned = pairs.turn_hue(colours, third)
    assert torch.allclose(turned[0], colours[0].roll(1, 1), atol=1e-5)  # red becomes green, green blue
    assert torch.allclose(turned.mean(2), colours.mean(2), atol=1e-6)
    assert torch.allclose(turned.norm(dim=2), colours.norm(dim=2), atol=1e-5)


def test_only_drawings_are_restyled_and_each_style_changes_them() -> None:
    drawing, photo = (pairs.normalise(look) for look in pairs.read([DATA / "01011_toon.webp"])[0])
    for name, style in pairs.STYLES.items():
        assert (style(drawing[None]) - drawing).abs().mean() > 0.01, name
    both = torch.stack([drawing, photo])[None].expand(40, -1, -1, -1, -1)
    spots = torch.zeros(40, 1, 256, 256)
    looks = latents.looks_of(both, spots, None)[0]
    assert torch.equal(latents.looks_of(both, spots, None, half_way=False)[0], looks[:, :2])
    assert torch.equal(looks[:, latents.PHOTO], photo.expand(40, -1, -1, -1))
    restyled = pairs.restyle(looks[:, latents.DRAWING], seeded())
    share = ((restyled - drawing).abs().amax((1, 2, 3)) > 0).float().mean()
    assert 0.1 < share < 0.6


def test_the_half_way_look_lies_between_drawing_and_photo() -> None:
    drawing, photo = (pairs.normalise(look)[None] for look in pairs.read([DATA / "01011_toon.webp"])[0])
    half = pairs.half_way(drawing, photo)
    whole = (drawing - photo).square().mean()
    assert (half - photo).square().mean() < 0.5 * whole and (half - drawing).square().mean() < 0.5 * whole
    assert torch.allclose(pairs.half_way(drawing, drawing).mean(), drawing.mean(), atol=0.02)


@pytest.mark.parametrize("second", [KEPT, NEGATIVE])
def test_a_lesson_draws_what_it_says(second: str) -> None:
    cache, embeds = prepared.stand_in(torch.device("cpu"))
    lesson = lessons.Lesson(latents.HALF_WAY, 0.5, 0.5, 1e-3, 1, batch=32, second_batch=16)
    kind = Kind(FIRST, second, (16, 12))
    batch = lessons.draw_batch(lesson, kind, cache, len(embeds[second]), seeded())
    assert batch.source.shape == (32, 16, 32, 24) and batch.pictures.max() < len(embeds[second])
    same = (batch.source == batch.target).flatten(1).all(1)
    assert 0.2 < same.float().mean() < 0.8  # the photos that are to stay
    assert (batch.stays.mean() == 1) == (second == KEPT)
    assert (batch.guide.max() > 0) == (second == NEGATIVE)
    assert batch.sigma.min() >= 0 and batch.sigma.max() <= 1


def test_settling_draws_the_coarse_part_to_what_the_model_expects() -> None:
    lesson = lessons.Lesson(latents.PHOTO, 0.0, 0.0, 1e-3, 1, batch=8, second_batch=2, settled=1.0, settled_eyes=0.5)
    made = trainer(lesson)
    batch = lessons.draw_batch(lesson, Kind(FIRST, NEGATIVE, (16, 16)), made.cache, 4, seeded())
    batch.eyes = torch.zeros(8, 1, 32, 32)
    batch.sigma = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.8, SETTLED_BELOW, 0.95, 1.0])
    aim = made.settle(batch, made.embeds[FIRST][:1].expand(8, -1, -1))
    assert torch.equal(aim[5:], batch.target[5:])  # the mean is learnt from these
    moved = aim[:5] - batch.target[:5]
    assert moved.abs().max() > 0.05 and not aim.requires_grad
    assert torch.allclose(pairs.blur(moved, 1.0), moved, atol=0.35 * float(moved.abs().max()))  # it is coarse
    batch.eyes[..., 8:12, 8:12] = 1.0  # where the detail is settled as well, by half
    there = made.settle(batch, made.embeds[FIRST][:1].expand(8, -1, -1))
    outside = batch.eyes.expand_as(aim) == 0
    assert torch.equal(there[outside], aim[outside]) and torch.equal(there[5:], batch.target[5:])
    velocity = made.predict(
        batch.noise.roll(1, 0), batch.source, torch.ones(8), made.embeds[FIRST][:1].expand(8, -1, -1)
    )
    expected = batch.noise.roll(1, 0) - unpack(velocity, batch.noise)
    half = (0.5 * expected + 0.5 * batch.target)[:5, :, 8:12, 8:12]
    assert torch.allclose(there[:5, :, 8:12, 8:12], half, atol=1e-4)


def test_detail_counts_more_than_a_plain_background() -> None:
    source = torch.zeros(2, 16, 32, 32)
    source[0, :, 8:16, 8:16] = torch.randn(16, 8, 8, generator=seeded())
    eyes = torch.zeros(2, 1, 32, 32)
    weight = emphasis(source, eyes)
    assert weight.shape == (2, 256, 1) and torch.allclose(weight.mean(1), torch.ones(2, 1), atol=1e-5)
    inside = weight[0].view(16, 16)[4:8, 4:8]
    assert inside.min() > 1.2 and weight[0].min() < 1 and torch.allclose(weight[1], torch.ones(256, 1))
    eyes[1, :, 4:6, 10:13] = 1.0
    more = (emphasis(source, eyes) - weight)[1].view(16, 16)
    assert more[2, 5:7].tolist() == pytest.approx([EYES_WEIGHT, EYES_WEIGHT / 2]) and float(
        more.sum()
    ) == pytest.approx(1.5 * EYES_WEIGHT)


def test_eyes_are_marked_where_they_are_and_move_with_the_picture(tmp_path: Path) -> None:
    files = [tmp_path / "00000_toon.webp", tmp_path / "00007_toon.webp"]
    assert pair_files.eyes(files) == [[], []]
    (tmp_path / "eyes.json").write_text('{"00007": [[0.25, 0.5, 0.05], [0.75, 0.5, 0.05]]}')
    spots = pairs.spots(pair_files.eyes(files), 64)
    assert spots.shape == (2, 1, 64, 64) and spots[0].abs().max() == 0
    assert spots[1, 0, 31:33, [15, 16, 47, 48]].min() == 1 and spots[1, 0, :, 28:36].max() == 0
    assert spots[1].sum() == pytest.approx(2 * torch.pi * (0.05 * 64 * pairs.EYE_REACH) ** 2 * 7 / 12, rel=0.05)
    both = torch.where(spots[:, None] > 0, 1.0, -1.0).expand(-1, 2, 3, -1, -1)
    for seed in range(4):
        looks, moved = latents.looks_of(both, spots, seeded(seed), half_way=False)
        assert moved[0].max() == 0 and moved[1].max() > 0.9
        bright = looks[1, 1].mean(0) > looks[1, 1].mean()
        assert bright[moved[1, 0] > 0.5].float().mean() > 0.95 and bright[moved[1, 0] == 0].float().mean() < 0.05


def test_a_part_of_a_picture_is_measured_by_its_weight() -> None:
    target, output = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)
    output[:, :, :4] = 0.1
    weight = torch.zeros(2, 1, 8, 8)
    weight[0, :, :4] = 0.5
    found = metrics.psnr(output, target, span=1, weight=weight)
    assert float(found[0]) == pytest.approx(20, abs=1e-4) and bool(found[1].isnan())
    assert metrics.psnr(output, target, span=1).tolist() == pytest.approx([23.0103, 23.0103], abs=1e-3)


def test_texture_is_measured_by_its_strength_not_its_place() -> None:
    grain = torch.randn(2, 3, 64, 64, generator=seeded())
    mean = torch.zeros_like(grain)
    other = torch.randn(2, 3, 64, 64, generator=seeded(1))
    strengths = [
        sum(float((a - b).abs().mean()) for a, b in zip(texture.detail(x), texture.detail(grain), strict=True))
        for x in (mean, 0.5 * grain, other)
    ]
    assert strengths[0] > 1.5 * strengths[1] and strengths[1] > 2 * strengths[2]


def test_texture_trains_the_end_of_the_decoder_alone(two_threads: None) -> None:
    vae = prepared.load_vae(DEMO, torch.device("cpu"))
    before = {name: parameter.clone() for name, parameter in vae.named_parameters()}
    pixels = pairs.read([DATA / "01011_toon.webp"])[:, :, :, 64:128, 64:128]
    texture.train(pixels, vae, seconds=1.0)
    changed = {name for name, parameter in vae.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed and all(
        name.startswith(("decoder.up_blocks.3", "decoder.norm_out", "decoder.conv_out")) for name in changed
    )
    assert not any(parameter.requires_grad for parameter in vae.parameters())
    assert texture.figures(pixels, vae).count(" dB") == 2


def test_training_lowers_the_loss_and_averages() -> None:
    lesson = lessons.Lesson(latents.PHOTO, 0.0, 0.2, 2e-3, 1, batch=4, second_batch=2)
    made = trainer(lesson)
    kind = Kind(FIRST, NEGATIVE, (16, 16))
    fixed = lessons.draw_batch(lesson, kind, made.cache, 4, seeded(5))
    with torch.no_grad():
        before = float(made.loss(kind, fixed))
    seen: list[int] = []
    assert train(made, 600, lambda step, _past: seen.append(step), steps=14, first=4) == 14
    assert seen == list(range(5, 15))
    own = [parameter.detach().clone() for parameter in made.parameters]
    with made.averaged(), torch.no_grad():
        assert float(made.loss(kind, fixed)) < before
        assert not torch.equal(made.parameters[-1], own[-1])
    assert all(torch.equal(a, b) for a, b in zip(made.parameters, own, strict=True))


def test_the_rotary_embedding_for_the_compiler_is_the_stock_one() -> None:
    from diffusers.models.transformers.transformer_qwenimage import apply_rotary_emb_qwen

    x = torch.randn(2, 7, 3, 8, generator=seeded())
    angle = torch.rand(7, 4, generator=seeded(1)) * 6
    freqs = torch.polar(torch.ones_like(angle), angle)
    ours: Any = fused.rotate(x, torch.view_as_real(freqs))
    assert torch.allclose(ours, apply_rotary_emb_qwen(x, freqs, use_real=False), atol=1e-6)


def test_a_version_is_read_by_the_engine_as_it_was_trained(tmp_path: Path) -> None:
    """The factors beside the linears, and the file that the engine adds to the plain weights, give the same weights."""
    torch.manual_seed(0)
    net = QwenImageTransformer2DModel(**SMALL)
    plain = QwenImageTransformer2DModel(**SMALL)
    added = train_lora.attach(net, rank=8)
    plain.load_state_dict(train_lora.plain_state(net, added))
    for parameter in train_lora.factors_of(added):
        torch.nn.init.normal_(parameter, std=0.1)
        parameter.data = parameter.data.bfloat16().float()
    path = train_lora.save(added, 500, tmp_path)
    plain.save_pretrained(tmp_path / "transformer")
    AdapterSet(plain, ResidentBlocks(plain, WeightSource(tmp_path / "transformer"))).use([(path, 1.0)])
    for name, lora in added.items():
        expected = lora.linear.weight + lora.up @ lora.down
        assert torch.allclose(plain.get_submodule(name).weight, expected, atol=1e-5), name
    again = train_lora.attach(QwenImageTransformer2DModel(**SMALL), rank=12)
    train_lora.restore(again, path)
    assert torch.allclose(again["proj_out"].up @ again["proj_out"].down, added["proj_out"].up @ added["proj_out"].down)
    with pytest.raises(SystemExit, match="rank"):
        train_lora.restore(train_lora.attach(QwenImageTransformer2DModel(**SMALL), rank=2), path)


def test_the_rank_grows_from_version_to_version(tmp_path: Path) -> None:
    """Ranks to come neither act nor learn; a version holds only those that did."""
    torch.manual_seed(0)
    net = QwenImageTransformer2DModel(**SMALL)
    added = train_lora.attach(net, rank=8)
    made = Trainer(net, *prepared.stand_in(torch.device("cpu")))
    made.start(lessons.Lesson(latents.PHOTO, 0.0, 0.0, 1e-2, 1, batch=2, second_batch=1), train_lora.factors_of(added))
    lora = added["proj_out"]
    for end, rank in ((2, 3), (4, 8)):
        for each in added.values():
            each.use(rank)
        train(made, 600, lambda _step, _past: None, end, end - 2)
        silent = lora.up.detach().abs().amax(0) == 0
        assert silent.tolist() == [False] * rank + [True] * (8 - rank)
        saved = load_file(train_lora.save(added, end, tmp_path))
        assert saved["transformer.proj_out.lora_B.weight"].shape == (64, rank)
        assert torch.equal(saved["transformer.proj_out.lora_A.weight"], lora.down[:rank].bfloat16())


def test_versions_are_given_as_steps_and_rank() -> None:
    assert train_lora.version("4000:16") == train_lora.Version(4000, 16)
    for text in ("4000", "4000:", "0:16", "4000:-1", "x:y"):
        with pytest.raises(argparse.ArgumentTypeError, match="STEPS:RANK"):
            train_lora.version(text)


def test_each_version_takes_up_the_one_before() -> None:
    train_lora.check_order(train_lora.VERSIONS)
    for second in ((2000, 24), (1000, 24), (6000, 8)):
        with pytest.raises(SystemExit, match="can't follow 2000:16"):
            train_lora.check_order([train_lora.Version(2000, 16), train_lora.Version(*second)])


def test_going_on_from_a_version_writes_only_those_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watch:
        def report(self, *_: Any) -> float:
            return 20.0

    torch.manual_seed(0)
    net = QwenImageTransformer2DModel(**SMALL)
    added = train_lora.attach(net, rank=8)
    start = train_lora.save(added, 3, tmp_path)
    monkeypatch.setattr(lessons, "GOING_ON", lessons.Lesson(latents.PHOTO, 0.0, 0.0, 1e-3, 1, batch=2, second_batch=1))
    studio: Any = object.__new__(Studio)
    versions = [train_lora.Version(2, 4), train_lora.Version(4, 8)]
    studio.options = argparse.Namespace(from_version=start, versions=versions, seconds=60.0)
    studio.out, studio.began = tmp_path, time.monotonic()
    studio.versions(Trainer(net, *prepared.stand_in(torch.device("cpu"))), Watch(), added)
    written = sorted(file.name for file in (tmp_path / "versions").iterdir())
    assert written == ["demo_real_v0004.safetensors", "score.txt"]
    assert (tmp_path / "versions" / "score.txt").read_text() == "demo_real_v0004.safetensors 20.000\n"


def test_trainings_refuse_what_is_not_there_before_they_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="holds no VAE"):
        prepared.load_vae(tmp_path, torch.device("cpu"))
    (tmp_path / "file").touch()
    common = ["train", "transformer", "--pairs", str(tmp_path), "--seconds", "1"]
    monkeypatch.setattr("sys.argv", [*common, "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit, match="is a file"):
        train_main()
    monkeypatch.setattr("sys.argv", [*common, "--out", str(tmp_path / "new"), "--from-version", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="is no file"):
        train_main()
    assert not (tmp_path / "new").exists()


def test_similarity_is_one_for_the_same_picture_and_falls_with_noise() -> None:
    photo = opened(DATA / "01011_real.webp")
    noise: Any = np.random.default_rng(0).normal(0, 20, (256, 256, 3))
    noisy = Image.fromarray((np.asarray(photo) + noise).clip(0, 255).astype(np.uint8), "RGB")
    assert evaluate.ssim(photo, photo) == pytest.approx(1.0)
    assert 0.2 < evaluate.ssim(photo, noisy) < 0.9
    assert evaluate.psnr(photo, noisy) == pytest.approx(22.1, abs=1.0)  # 20 log10(255 / 20), less what is clipped
    assert evaluate.detail(noisy) > 1.5 * evaluate.detail(photo)


def test_eyes_are_scored_where_they_are_known() -> None:
    photo = opened(DATA / "01011_real.webp")
    blind = photo.copy()
    blind.paste((0, 0, 0), (100, 80, 160, 120))
    eyes = [[[115 / 256, 100 / 256, 0.02], [145 / 256, 100 / 256, 0.02]], []]
    found = evaluate.score([blind, photo.rotate(180)], [photo, photo], eyes)
    assert found.eyes < found.psnr and found.eyes == evaluate.score([blind], [photo], eyes[:1]).eyes


def test_eyes_are_shown_six_times_as_large() -> None:
    picture = Image.new("RGB", (256, 256), "white")
    picture.paste((255, 0, 0), (98, 90, 104, 96))
    picture.paste((0, 0, 255), (132, 90, 138, 96))
    near = evaluate.close_up(picture, [[101 / 256, 93 / 256, 0.02], [135 / 256, 93 / 256, 0.02]])
    assert near.size == (480, 216)
    assert near.getpixel((240 - 17 * 6, 108)) == (255, 0, 0) and near.getpixel((240 + 17 * 6, 108)) == (0, 0, 255)


def test_the_colour_map_is_exact_for_a_map_of_colours(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "0_toon.webp", lossless=True)
    Image.fromarray(255 - pixels[..., ::-1]).save(tmp_path / "0_real.webp", lossless=True)
    mapped = evaluate.ColourMap([tmp_path / "0_toon.webp"])(Image.fromarray(pixels))
    assert np.abs(np.asarray(mapped).astype(int) - (255 - pixels[..., ::-1])).max() <= 1


def test_scoring_takes_the_results_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pair_files, "HELD_OUT", 2)
    monkeypatch.setattr("sys.argv", ["evaluate", "split", "--pairs", str(DATA), "--out", str(tmp_path / "drawings")])
    evaluate.main()
    assert sorted(file.name for file in (tmp_path / "drawings").iterdir()) == ["01041_toon.webp", "01049_toon.webp"]
    (tmp_path / "perfect").mkdir()
    for index in ("01041", "01049"):
        opened(DATA / f"{index}_real.webp").save(tmp_path / "perfect" / f"{index}_toon.png")
    sheet = tmp_path / "sheet.png"
    arguments = ["--pairs", str(DATA), "--results", str(tmp_path / "perfect"), "--sheet", str(sheet)]
    monkeypatch.setattr("sys.argv", ["evaluate", "score", *arguments])
    evaluate.main()
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("sys.argv", ["evaluate", "score", "--pairs", str(DATA), "--results", str(tmp_path / "empty")])
    with pytest.raises(SystemExit, match="No held-out drawing"):
        evaluate.main()
    with pytest.raises(SystemExit, match="No pairs"):
        pair_files.drawings(tmp_path)
    rows = {line.split("|")[1].strip(): line.split("|")[2:] for line in capsys.readouterr().out.splitlines()}
    assert float(rows["perfect"][1]) == 1.0 and float(rows["perfect"][2]) == 1.0 and rows["perfect"][3].strip() == "nan"
    assert float(rows["drawing unchanged"][0]) < float(rows["best global colour map"][0]) + 3
    assert opened(sheet).size == (512, 3 * (256 + evaluate.LABEL))
