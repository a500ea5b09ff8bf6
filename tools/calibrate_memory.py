"""Measures what a full-size base needs on this graphics card, beside what `engine.memory` predicts.

    python -m tools.calibrate_memory --sizes 512x512 1024x1024

Builds the real architecture with random weights on the card (57 GB in bfloat16), runs each stage of the engine and prints
its peak above the weights, and the seconds a CFG step takes. The constants in `engine/memory.py` come from here.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer, Qwen2VLImageProcessorPil

from realchar.bench.full_size import TEXT, TRANSFORMER, VISION
from realchar.bench.steps import noise_picture
from realchar.catalog import BaseInfo
from realchar.engine.blocks import ResidentBlocks
from realchar.engine.families.qwen_image_edit import QwenImageEdit
from realchar.engine.memory import Footprint, estimate_bytes
from realchar.engine.pipeline import Engine
from realchar.engine.text_encoder import ResidentLayers, TextEncoder
from realchar.engine.weights import WeightSource
from realchar.presets import NEGATIVE, PROMPTS
from realchar.schema import EditRequest, Stage, Step

DEMO = Path(__file__).resolve().parents[1] / "weights" / "demo"


def full_size(device: torch.device, layers: int | None) -> QwenImageEdit:
    """Build the real architecture with random weights; `layers` cuts transformer and text encoder for a quick try."""
    cut = {} if layers is None else {"num_layers": layers}
    text_cut = {} if layers is None else {"num_hidden_layers": layers}
    demo = json.loads((DEMO / "text_encoder" / "config.json").read_text(encoding="utf-8"))
    ids = {key: demo[key] for key in demo if key.endswith("token_id") and demo[key] is not None}
    config = Qwen2_5_VLConfig(text_config=TEXT | text_cut, vision_config=VISION, **ids)
    torch.set_default_dtype(torch.bfloat16)
    with device:
        transformer = QwenImageTransformer2DModel(**(TRANSFORMER | cut))
        vae = AutoencoderKLQwenImage()
        text_encoder = Qwen2_5_VLForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
    encoder = TextEncoder(text_encoder.model, ResidentLayers(text_encoder.model))
    tokenizer = Qwen2Tokenizer.from_pretrained(DEMO / "tokenizer")
    processor = Qwen2VLImageProcessorPil.from_pretrained(DEMO / "processor")
    scheduler = json.loads((DEMO / "scheduler" / "scheduler_config.json").read_text(encoding="utf-8"))
    blocks = ResidentBlocks(transformer, WeightSource(DEMO / "transformer"))
    return QwenImageEdit(transformer, vae, encoder, tokenizer, processor, scheduler, blocks)


def measure(engine: Engine, size: tuple[int, int]) -> dict[str, float]:
    """Run three steps with CFG and return the peak of each stage above the weights, in bytes, and seconds a step."""
    picture = noise_picture(size)
    request = EditRequest(prompt=PROMPTS["enhanced"], negative_prompt=NEGATIVE, steps=3, cfg=4.0, seed=0)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    base = torch.cuda.memory_allocated()
    peaks: dict[str, float] = {}
    stage = "start"
    times = []
    for event in engine.run(request, picture, (0, 0, *size), []):
        torch.cuda.synchronize()
        peaks[stage] = max(peaks.get(stage, 0), torch.cuda.max_memory_allocated() - base)
        if isinstance(event, Stage):
            stage = event.stage
        torch.cuda.reset_peak_memory_stats()
        if isinstance(event, Step):
            times.append(time.perf_counter())
    peaks["s_per_step"] = times[-1] - times[-2]
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["512x512", "768x1024", "1024x1024"])
    parser.add_argument("--layers", type=int, help="cut the models to this many layers")
    args = parser.parse_args()
    began = time.perf_counter()
    family = full_size(torch.device("cuda"), args.layers)
    torch.cuda.synchronize()
    weights = torch.cuda.memory_allocated()
    free, total = torch.cuda.mem_get_info()
    context = total - free - torch.cuda.memory_reserved()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, built in {time.perf_counter() - began:.0f} s")
    print(f"weights {weights / 1e9:.2f} GB, context {context / 1e9:.2f} GB")
    info = BaseInfo(DEMO, "random", "random", False, "", 1024, 1024**2, None, weights, 3072, 96, "")
    engine = Engine(info, family)
    for text in args.sizes:
        width, height = map(int, text.split("x"))
        measure(engine, (width, height))  # the first run also compiles and caches
        engine._prompts.clear()
        peaks = measure(engine, (width, height))
        predicted = estimate_bytes(Footprint.of(info, on_gpu=True), width, height) / 1e9
        real = (weights + context + max(v for k, v in peaks.items() if k != "s_per_step")) / 1e9
        print(f"{text}: predicted {predicted:.2f} GB, measured {real:.2f} GB, {peaks['s_per_step']:.3f} s a CFG step")
        tokens = 2 * width * height // 256
        for stage, peak in peaks.items():
            if stage != "s_per_step":
                per = f"{peak / tokens / 3072:.1f} bytes a token and channel, {peak / width / height:.0f} a pixel"
                print(f"    {stage}: {peak / 1e9:.3f} GB, {per}")


if __name__ == "__main__":
    main()
