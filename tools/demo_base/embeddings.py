"""Prompt embeddings beside some of the training pictures, by the product's own `encode_prompts` on spare CPU cores.

    python -m tools.demo_base.embeddings --base DIR --pairs DIR --out DIR --part 0 --parts 8

Embeddings depend on the picture that is read with the prompt. Training takes them beside any picture of the pool, not
beside their own, so that no picture can be learnt by heart through its embedding.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from realchar.engine.families.qwen_image_edit import QwenImageEdit
from realchar.engine.work import result_of
from realchar.presets import NEGATIVE, PROMPTS
from tools.demo_base import pair_files

# What the model learns to do for which words, with how often each is drawn.
PHOTO = {
    PROMPTS["base"]: 0.45,
    PROMPTS["enhanced"]: 0.4,
    "将图片转换为真实照片。真人实拍照片，皮肤自然，光线柔和。": 0.15,
}
KEEP = {"Keep the drawing.": 1.0}
UNCONDITIONAL = {NEGATIVE: 0.7, " ": 0.3}
POOL = 128  # pictures whose embeddings are computed
PROMPT_LIST = [*PHOTO, *KEEP, *UNCONDITIONAL]


def start(base: Path, folder: Path, out: Path, limit: int = POOL) -> list[subprocess.Popen[bytes]]:
    """Start one process for each spare core; `join` collects what they write."""
    out.mkdir(parents=True, exist_ok=True)
    parts = max(1, min((os.cpu_count() or 2) - 2, limit))
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tools.demo_base.embeddings", "--base", base, "--pairs", folder, "--out", out]
    numbers = ["--limit", str(limit), "--parts", str(parts)]
    return [subprocess.Popen([*map(str, command), *numbers, "--part", str(part)], env=env) for part in range(parts)]


def join(processes: list[subprocess.Popen[bytes]], out: Path, device: torch.device) -> dict[str, Tensor]:
    """Wait, and return for each prompt the embeddings (N, L, width) in the order of the training pictures."""
    if any(process.wait() for process in processes):
        raise SystemExit("An embedding process failed; its message is above.")
    parts = [torch.load(out / f"{part}.pt") for part in range(len(processes))]
    table = {}
    for prompt in PROMPT_LIST:
        stacked = torch.empty((sum(len(p[prompt]) for p in parts), *parts[0][prompt].shape[1:]), dtype=torch.bfloat16)
        for part, values in enumerate(parts):
            stacked[part :: len(parts)] = values[prompt]
        table[prompt] = stacked.to(device)
    return table


@torch.inference_mode()
def embed(base: Path, drawings: list[Path]) -> dict[str, Tensor]:
    """Return for each prompt the embeddings (N, L, width) of these pictures."""
    family = QwenImageEdit.load(base, torch.device("cpu"), torch.float32)
    found: dict[str, list[Tensor]] = {prompt: [] for prompt in PROMPT_LIST}
    for file in drawings:
        with Image.open(file) as image:
            picture = image.convert("RGB")
        embeds = result_of(family.encode_prompts(picture, PROMPT_LIST))
        for prompt, values in zip(PROMPT_LIST, embeds, strict=True):
            found[prompt].append(values.bfloat16())
    return {prompt: torch.cat(embeds) for prompt, embeds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--base", "--pairs", "--out"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--part", "--parts", "--limit"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = pair_files.training(options.pairs)[: options.limit]
    torch.save(embed(options.base, files[options.part :: options.parts]), options.out / f"{options.part}.pt")


if __name__ == "__main__":
    main()
