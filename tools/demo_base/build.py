"""Write the miniature base: the folder layout of the real one, the same classes, deterministic random weights.

    python -m tools.demo_base.build --out weights/demo

The same machine and library versions give the same bytes. Nothing here is trained; `train` starts from it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
from tokenizers import Tokenizer, models, trainers
from torch import nn
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
)

from realchar.engine.families.qwen_image_edit import TEMPLATE, TEMPLATE_TOKENS
from realchar.presets import NEGATIVE, PROMPTS
from tools.demo_base import architecture

SEED = 2511
VOCABULARY = 1024
CORPUS = (
    TEMPLATE.format("Picture 1: "),
    *PROMPTS.values(),
    NEGATIVE,
    "Keep the drawing. Close portrait, eyes sharp, natural catchlights, even skin tone. An adult man with a natural "
    "jaw line and realistic skin texture. Turn the background into a real place as well. The picture is line art: give it "
    "plausible natural colours and materials. Keep printed patterns, logos and lettering exactly as drawn.",
    "将图片转换为真实照片。真人实拍照片，皮肤自然，光线柔和。动漫，漫画，卡通，插画",
)
REAL_ONE = "For real results start with Qwen-Image-Edit-2511; the README shows how."
UNTRAINED = (
    "This is the embedded demo base, and it is not trained yet: it runs the whole path in seconds, but what comes out "
    f"is a pattern, not a photograph. {REAL_ONE}"
)
TRAINED = (
    "This is the demo base: small, and trained on rendered portraits like the samples. Other styles lose their faces: flat "
    f"anime, line art, manga tones, pixel art. {REAL_ONE}"
)


def make_tokenizer() -> Qwen2Tokenizer:
    """Train a byte-level BPE on the project's own prompts: the template has as many tokens as in the real one."""
    blank = Qwen2Tokenizer()  # its pre-tokenizer splits exactly as the real tokenizer's
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    bpe.normalizer = blank.backend_tokenizer.normalizer
    text = [part for line in CORPUS for part in _split_special(line)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(trainers_alphabet()),
    )
    bpe.train_from_iterator(text * 2, trainer)
    model = json.loads(bpe.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Qwen2Tokenizer(vocab=model["vocab"], merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": list(architecture.SPECIAL_TOKENS[1:])})
    tokens = tokenizer(TEMPLATE.split("{}")[0])["input_ids"]
    if len(tokens) != TEMPLATE_TOKENS:
        raise SystemExit(f"The template is {len(tokens)} tokens, but {TEMPLATE_TOKENS} are dropped; change CORPUS.")
    return tokenizer


def trainers_alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel.alphabet()


def _split_special(line: str) -> list[str]:
    for token in architecture.SPECIAL_TOKENS:
        line = line.replace(token, "\0")
    return [part for part in line.split("\0") if part]


def initialise(model: nn.Module) -> None:
    """Draw every weight anew: the classes' own defaults leave some of them zero, and a zero gate hides faults."""
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.ndim >= 2:
            fan_in = parameter[0].numel()
            nn.init.normal_(parameter, std=fan_in**-0.5, generator=generator)
        elif name.endswith(("weight", "gamma")):
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=0.02, generator=generator)
        if name.endswith("gamma"):
            nn.init.ones_(parameter)


def build(out: Path) -> None:
    """Write all components into `out`, replacing what is there."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tokenizer = make_tokenizer()
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in architecture.SPECIAL_TOKENS}
    transformer = QwenImageTransformer2DModel(**architecture.TRANSFORMER)
    vae = AutoencoderKLQwenImage(
        **architecture.VAE,
        latents_mean=[0.0] * architecture.VAE["z_dim"],
        latents_std=[1.0] * architecture.VAE["z_dim"],
    )
    config = Qwen2_5_VLConfig(**architecture.text_encoder(len(tokenizer), ids))
    text_encoder = Qwen2_5_VLForConditionalGeneration(config)
    for name, model in {"transformer": transformer, "vae": vae, "text_encoder": text_encoder}.items():
        initialise(model)
        model.to(torch.bfloat16).save_pretrained(out / name)
    FlowMatchEulerDiscreteScheduler(**architecture.SCHEDULER).save_pretrained(out / "scheduler")
    tokenizer.save_pretrained(out / "tokenizer")
    tokenizer.save_pretrained(out / "processor")
    Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 1280).save_pretrained(out / "processor")
    write_index(out)


def write_index(out: Path, trained: bool = False, preview: list[list[float]] | None = None) -> None:
    """Write what says of which classes the folder is made, and what the base is.

    `preview` maps normalised latents and a one to RGB in -1…1 (17 rows of 3); without it, one that is there stays.
    """
    index = {
        "_class_name": "QwenImageEditPlusPipeline",
        "_diffusers_version": "0.42.0",
        "processor": ["transformers", "Qwen2VLProcessor"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLQwenImage"],
    }
    own: dict[str, Any] = {
        "title": "Demo base",
        "demo": True,
        "trained": trained,
        "notice": TRAINED if trained else UNTRAINED,
        "long_edge": architecture.SIDE,
        "native_area": architecture.SIDE**2,
        "work_edge": architecture.SIDE,
    }
    if preview is not None:
        own["preview"] = [[round(value, 5) for value in row] for row in preview]
    elif (out / "realchar.json").exists():
        own |= {k: v for k, v in json.loads((out / "realchar.json").read_text("utf-8")).items() if k == "preview"}
    for name, data in {"model_index.json": index, "realchar.json": own}.items():
        (out / name).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    build(parser.parse_args().out)


if __name__ == "__main__":
    main()
