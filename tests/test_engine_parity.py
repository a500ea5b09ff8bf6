"""Our loop against diffusers' own pipeline: same components, seed and grid must give the same latents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus as stock
import numpy as np
import pytest
import torch
from PIL import Image

from realchar.catalog import load_base
from realchar.engine import still_vae
from realchar.engine.pipeline import Engine
from realchar.presets import NEGATIVE, PROMPTS
from realchar.schema import Decoded, EditRequest
from tests.tiny import DEMO, DEVICE, copy_base

SHORT, LONG = PROMPTS["base"], PROMPTS["enhanced"] + " " + PROMPTS["base"]
GRID = (96, 128)


class _Processor:
    """What `Qwen2VLProcessor` does for one picture; the class itself wants a video processor and so torchvision."""

    def __init__(self, family: Any) -> None:
        self.family = family

    def __call__(self, text: list[str], images: list[Image.Image], **_: Any) -> Any:
        from transformers import BatchFeature

        vision = self.family.image_processor(images=images, return_tensors="pt")
        num_pads = int(vision["image_grid_thw"][0].prod()) // self.family.image_processor.merge_size**2
        text = [t.replace("<|image_pad|>", "<|image_pad|>" * num_pads) for t in text]
        return BatchFeature({**self.family.tokenizer(text, return_tensors="pt"), **vision})


class _TextEncoder(torch.nn.Module):
    """The engine's text encoder as the stock pipeline should call it.

    With transformers 5 that pipeline drops `mm_token_type_ids`, and the encoder falls back to 1-D positions without a
    word (diffusers issue 14194); the model was trained, and ran with transformers 4, on 3-D ones. Only this is mended.
    """

    def __init__(self, family: Any) -> None:
        super().__init__()
        self.model = family.text_encoder.model
        self.dtype, self.device = family.dtype, family.device
        self.image_pad = family.tokenizer.convert_tokens_to_ids("<|image_pad|>")

    def forward(self, input_ids: torch.Tensor, output_hidden_states: bool, **inputs: Any) -> Any:
        marks = (input_ids == self.image_pad).int()
        return self.model(
            input_ids=input_ids, mm_token_type_ids=marks, output_hidden_states=output_hidden_states, **inputs
        )


def picture() -> Image.Image:
    noise = np.random.default_rng(3).random((GRID[1], GRID[0], 3))
    ramp = np.linspace(0, 1, GRID[0])[None, :, None]
    return Image.fromarray((255 * (0.3 * noise + 0.7 * ramp)).astype(np.uint8), "RGB")


@pytest.fixture
def stock_pipeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Build the stock pipeline on an engine's own components; its hidden rescale is set to our grid's area."""
    monkeypatch.setattr(stock, "VAE_IMAGE_SIZE", GRID[0] * GRID[1])

    def build(engine: Engine) -> stock.QwenImageEditPlusPipeline:
        family: Any = engine.family
        pipeline = stock.QwenImageEditPlusPipeline(
            scheduler=stock.FlowMatchEulerDiscreteScheduler.from_config(family.scheduler_config),
            vae=family.vae,
            text_encoder=_TextEncoder(family),
            tokenizer=family.tokenizer,
            processor=_Processor(family),
            transformer=family.transformer,
        )
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    yield build


def run_ours(engine: Engine, request: EditRequest) -> tuple[torch.Tensor, Image.Image]:
    """Return the final latents as packed tokens, and the picture."""
    kept: list[torch.Tensor] = []
    original = engine.family.unpack

    def spy(tokens: torch.Tensor, shape: Any) -> torch.Tensor:
        kept.append(tokens.clone())
        return original(tokens, shape)

    engine.family.unpack = spy  # type: ignore[method-assign]
    try:
        events = list(engine.run(request, picture(), (0, 0, *GRID), []))
    finally:
        del engine.family.unpack
    assert isinstance(events[-1], Decoded)
    return kept[-1], events[-1].image


@pytest.mark.parametrize("zero_cond_t", [True, False])
@pytest.mark.parametrize("cfg", [1.0, 4.0])
@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["short", "long"])
def test_latents_equal_the_stock_pipeline(
    tmp_path: Path, stock_pipeline: Any, zero_cond_t: bool, cfg: float, prompt: str
) -> None:
    engine = Engine.load(load_base(copy_base(tmp_path / "base", zero_cond_t=zero_cond_t)), DEVICE)
    request = EditRequest(prompt=prompt, negative_prompt=NEGATIVE, steps=3, cfg=cfg, seed=11)
    ours, image = run_ours(engine, request)
    arguments = {
        "image": picture(),
        "prompt": prompt,
        "negative_prompt": NEGATIVE if cfg > 1 else None,
        "true_cfg_scale": cfg,
        "num_inference_steps": 3,
        "width": GRID[0],
        "height": GRID[1],
    }
    seen: list[torch.Tensor] = []

    def keep(pipeline: Any, step: int, timestep: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        seen.append(tensors["latents"].clone())
        return {}

    # The same noise is handed over: the stock pipeline draws it in bfloat16 on a card, the engine always in float32.
    noise = engine.family.noise((1, GRID[1] // 16, GRID[0] // 16), 11)
    with still_vae.planar():  # as the engine reads the picture; tests/test_still_vae.py holds it beside the stock VAE
        expected = stock_pipeline(engine)(**arguments, latents=noise, callback_on_step_end=keep).images[0]
    difference = (ours - seen[-1]).abs().max().item()
    print(f"zero_cond_t={zero_cond_t} cfg={cfg} prompt of {len(prompt)} letters: max |ours - stock| = {difference:.3g}")
    assert len(seen) == 3 and seen[-1].abs().max() > 0.5
    assert difference == 0
    pixels = np.abs(np.asarray(image, dtype=int) - np.asarray(expected, dtype=int))
    assert pixels.max() <= (1 if engine.family.dtype == torch.float32 else 2)  # the stock one rounds in bfloat16


def test_a_seed_gives_the_stock_pipelines_noise_in_float32() -> None:
    engine = Engine.load(load_base(DEMO), "cpu")
    rows, columns = GRID[1] // 16, GRID[0] // 16
    generator = torch.Generator().manual_seed(7)
    theirs = stock.randn_tensor((1, 1, 16, rows * 2, columns * 2), generator=generator)
    packed = stock.QwenImageEditPlusPipeline._pack_latents(theirs, 1, 16, rows * 2, columns * 2)
    assert torch.equal(engine.family.noise((1, rows, columns), 7), packed)
