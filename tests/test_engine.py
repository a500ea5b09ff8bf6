"""The engine at miniature size: events, determinism, cancelling, and what it refuses to call a picture."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from realchar.catalog import load_base
from realchar.engine.pipeline import Engine
from realchar.engine.preview import fit_preview, render_preview
from realchar.errors import InvalidInput, ModelError, OutOfMemory, ResultError
from realchar.schema import Decoded, Degraded, EditRequest, Event, Planned, Stage, Step, Tick
from tests.tiny import DEMO, DEVICE, copy_base

REQUEST = EditRequest(prompt="Transform the image into a realistic photograph.", steps=3, cfg=3.0, seed=1)
SIZE = (96, 64)
TILED = 8 if DEVICE == "cuda" else 1  # of 255: in bfloat16 other shapes round differently, 6 levels were seen on a card

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(load_base(DEMO), DEVICE)


def picture(size: tuple[int, int] = SIZE) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels, "RGB")


def run(engine: Engine, request: EditRequest = REQUEST, box: tuple[int, int, int, int] | None = None) -> list[Event]:
    return list(engine.run(request, picture(), box or (0, 0, *SIZE), []))


def result(events: list[Event]) -> np.ndarray[Any, Any]:
    assert isinstance(events[-1], Decoded)
    return np.asarray(events[-1].image)


def test_events_tell_the_stages_in_order_and_every_step(engine: Engine) -> None:
    events = run(engine)
    assert [e.stage for e in events if isinstance(e, Stage)] == [
        "encode_text",
        "encode_image",
        "plan",
        "denoise",
        "decode",
    ]
    steps = [e for e in events if isinstance(e, Step)]
    assert [(e.i, e.n) for e in steps] == [(1, 3), (2, 3), (3, 3)]
    assert steps[-1].eta_s == 0 and all(a.elapsed_s < b.elapsed_s for a, b in itertools.pairwise(steps))
    assert all(e.preview is not None and e.preview.size == (SIZE[0] // 8, SIZE[1] // 8) for e in steps)
    ticks = sum(isinstance(e, Tick) for e in events)
    text_layers = 2
    # The picture as the prompts see it, the text layers, the picture as the reference, then one a block.
    assert ticks == 1 + text_layers + 1 + 3 * engine.family.num_blocks


def test_same_seed_same_picture_other_seed_another(engine: Engine) -> None:
    first, again = result(run(engine)), result(run(engine))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, result(run(engine, replace(REQUEST, seed=2))))


def test_a_fresh_engine_gives_the_same_picture(engine: Engine) -> None:
    assert np.array_equal(result(run(engine)), result(run(Engine.load(load_base(DEMO), DEVICE))))


def test_prompt_cfg_and_steps_have_an_effect(engine: Engine) -> None:
    base = result(run(engine)).astype(int)
    for change in ({"prompt": "Keep the drawing."}, {"cfg": 6.0}, {"steps": 2}, {"negative_prompt": "photo"}):
        other = result(run(engine, replace(REQUEST, **change)))  # type: ignore[arg-type]
        assert np.abs(base - other).max() > 0, change


def test_cfg_1_runs_one_branch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    original = engine.family.velocities

    def spy(branches: list[Any], wanted: Any) -> Any:
        counts.append(len(branches))
        return original(branches, wanted)

    monkeypatch.setattr(engine.family, "velocities", spy)
    run(engine, replace(REQUEST, cfg=1.0))
    run(engine)
    assert counts == [1, 1, 1, 2, 2, 2]


def test_the_result_is_cropped_to_the_prepared_picture(engine: Engine) -> None:
    full = result(run(engine))
    cropped = result(run(engine, box=(3, 2, 90, 61)))
    assert cropped.shape == (59, 87, 3)
    assert np.array_equal(cropped, full[2:61, 3:90])


def test_prompts_are_encoded_once_for_the_same_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.load(load_base(DEMO), DEVICE)
    calls: list[str] = []
    original = engine.family.encode_prompts
    monkeypatch.setattr(engine.family, "encode_prompts", lambda p, t: calls.extend(t) or original(p, t))
    run(engine)
    run(engine, replace(REQUEST, seed=5))
    assert len(calls) == 2
    list(engine.run(REQUEST, picture((64, 96)), (0, 0, 64, 96), []))
    assert len(calls) == 4


def test_closing_ends_within_one_block_and_the_engine_goes_on(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    forwards: list[int] = []
    for block in engine.family.transformer.transformer_blocks:  # type: ignore[attr-defined]
        original = block.forward
        monkeypatch.setattr(block, "forward", lambda *a, f=original, **k: forwards.append(1) or f(*a, **k))
    with closing(iter(engine.run(REQUEST, picture(), (0, 0, *SIZE), []))) as events:  # type: ignore[type-var]
        for event in events:
            if isinstance(event, Stage) and event.stage == "denoise":
                break
        for _ in range(2):
            assert isinstance(next(events), Tick)
    assert len(forwards) == 4  # two blocks, each for both branches; none after the close
    assert isinstance(run(engine)[-1], Decoded)


def test_nan_latents_are_no_result(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realchar.engine.denoising.guided", lambda cond, uncond, scale: cond * float("nan"))
    with pytest.raises(ResultError, match="numbers overflowed"):
        run(engine)


def test_a_flat_picture_is_no_result(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.family, "decode", lambda latents, tile: torch.full((1, 3, SIZE[1], SIZE[0]), 0.25))
    with pytest.raises(ResultError, match="single colour") as caught:
        run(engine)
    assert caught.value.code == "flat"


@pytest.mark.parametrize("stage", ["encode_prompts", "encode_image", "velocities", "decode"])
def test_out_of_memory_is_a_sentence_at_every_stage(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def fail(*args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    engine._prompts.clear()
    monkeypatch.setattr(engine.family, stage, fail)
    with pytest.raises(OutOfMemory, match=r"96x64.*smaller size") as caught:
        run(engine)
    assert caught.value.__context__ is None  # the old error would keep the tensors alive
    monkeypatch.undo()
    assert isinstance(run(engine)[-1], Decoded)


@pytest.mark.parametrize("stage", ["encode_image", "decode"])
def test_tiles_get_smaller_until_the_picture_fits(engine: Engine, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    large = (192, 128)  # 16 rows of 24 latents
    whole = result(list(engine.run(REQUEST, picture(large), (0, 0, *large), [])))
    original, tried = getattr(engine.family, stage), []

    def fail_twice(given: Any, tile: Any) -> Any:
        tried.append(tile)
        if len(tried) < 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(given, tile)

    monkeypatch.setattr(engine.family, stage, fail_twice)
    events = list(engine.run(REQUEST, picture(large), (0, 0, *large), []))
    given_up = [event for event in events if isinstance(event, Degraded)]
    assert tried == [None, (16, 12), (8, 12)]
    assert [(event.code, event.args) for event in given_up] == [("vae_tiles", {"tiles": n}) for n in (2, 4)]
    assert given_up[1].text == "the picture is now done in 4 tiles"
    assert np.abs(result(events).astype(int) - whole).max() <= TILED


def test_tiles_as_asked_give_the_same_picture_and_are_told(engine: Engine) -> None:
    whole, tiled = run(engine), run(engine, replace(REQUEST, tile=64))
    counts = [next(event.vae_tiles for event in events if isinstance(event, Planned)) for events in (whole, tiled)]
    assert counts == [1, 2]  # 96x64 pixels
    assert np.abs(result(whole).astype(int) - result(tiled)).max() <= TILED


def test_little_memory_means_tiles(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realchar.engine.allotment.free_bytes", lambda *_: 1_000_000)
    plan = next(event for event in run(engine) if isinstance(event, Planned))
    assert plan.vae_tiles > 1


def test_unusable_devices_are_refused() -> None:
    for name in ("cuda", "cuda:99", "toaster", "meta"):
        if name == "cuda" and torch.cuda.is_available():
            continue
        with pytest.raises(InvalidInput, match="auto, cpu or cuda"):
            Engine.load(load_base(DEMO), name)


def test_a_damaged_base_is_named(tmp_path: Path) -> None:
    base = copy_base(tmp_path / "base")
    file = base / "transformer" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match="can't be read"):
        Engine.load(load_base(base), "cpu")


def test_a_base_that_lacks_a_weight_is_named(tmp_path: Path) -> None:
    base = copy_base(tmp_path / "base")
    file = base / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    del tensors["transformer_blocks.5.attn.add_k_proj.bias"]
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"lacks 'transformer_blocks\.5\.attn\.add_k_proj\.bias'"):
        Engine.load(load_base(base), "cpu")


def test_a_preview_map_is_exact_where_the_vae_is_linear() -> None:
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, 16, 12, 10, generator=generator)
    matrix = torch.randn(3, 16, generator=generator) * 0.1
    small = torch.einsum("oc,bchw->bohw", matrix, latents) + 0.05
    pixels = small.repeat_interleave(8, 2).repeat_interleave(8, 3)
    image = np.asarray(render_preview(latents, fit_preview(latents, pixels)), dtype=float)
    expected = ((small[0].permute(1, 2, 0).clamp(-1, 1) + 1) * 127.5).numpy()
    assert np.abs(image - expected).max() <= 2


def test_a_preview_of_one_colour_does_not_fail() -> None:
    latents, pixels = torch.ones(1, 16, 4, 4), torch.full((1, 3, 32, 32), 0.5)
    image = np.asarray(render_preview(latents, fit_preview(latents, pixels)))
    assert np.abs(image.astype(int) - 191).max() <= 3
