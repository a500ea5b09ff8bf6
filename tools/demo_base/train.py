"""Train the demo base on rendered pairs: first the VAE, then the transformer; the text encoder stays as drawn.

    python -m tools.demo_base.train --pairs DIR --out DIR --vae-seconds 160 --transformer-seconds 200

`--out` is a base folder; where it is none yet, the untrained one is written first. Meant for a GPU; seeds are fixed, but
training by the clock and the GPU's own kernels give other weights each time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from torch import Tensor, nn

from tools.demo_base import architecture, build, embeddings, pairs, train_transformer, train_vae


def store(model: Any, folder: Path) -> None:
    """Write a component in bfloat16."""
    deepcopy(model).to(torch.bfloat16).save_pretrained(folder)


def train_first(pixels: Tensor, out: Path, seconds: float) -> AutoencoderKLQwenImage:
    """Train the VAE and write it, without its latents' statistics yet."""
    vae = AutoencoderKLQwenImage(**architecture.VAE).to(pixels.device)
    for module in vae.modules():  # taps that a still picture never reaches: zero packs well and hides nothing
        if isinstance(module, QwenImageCausalConv3d):
            nn.init.zeros_(module.weight.data[:, :, :-1])
    train_vae.train(pixels, vae, seconds, lambda: store(vae, out / "vae"))
    store(vae, out / "vae")
    return vae.eval()


def train_second(
    vae: AutoencoderKLQwenImage, pixels: Tensor, embeds: dict[str, Tensor], out: Path, seconds: float
) -> None:
    """Measure the latents, write the VAE with them, train the transformer and write it."""
    repeats = train_vae.LATENT_REPEATS if pixels.is_cuda else 2
    latents, mean, std = train_vae.latent_cache(pixels, vae, repeats)
    print("latents", tuple(latents.shape), "std", [round(value, 2) for value in std.tolist()], flush=True)
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    store(vae, out / "vae")
    transformer = QwenImageTransformer2DModel(**architecture.TRANSFORMER)
    train_transformer.initialise(transformer)
    transformer.to(pixels.device)
    train_transformer.train(
        transformer, latents, embeds, seconds, lambda averaged: store(averaged, out / "transformer")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vae-seconds", type=float, required=True)
    parser.add_argument("--transformer-seconds", type=float, required=True)
    parser.add_argument("--limit", type=int, default=100_000, help="train on the first pairs only")
    options = parser.parse_args()
    began = time.monotonic()
    torch.manual_seed(build.SEED)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not (options.out / "model_index.json").exists():
        build.build(options.out)
    with tempfile.TemporaryDirectory() as scratch, train_vae.planar():
        files = pairs.training(options.pairs)[: options.limit]
        processes = embeddings.start(options.out, options.pairs, Path(scratch), len(files))
        pixels = pairs.read(files).to(device)
        print(f"{len(pixels)} pairs {time.monotonic() - began:.0f} s", flush=True)
        vae = train_first(pixels, options.out, options.vae_seconds)
        embeds = embeddings.join(processes, Path(scratch), device)
        print(f"embeddings {time.monotonic() - began:.0f} s", flush=True)
        train_second(vae, pixels, embeds, options.out, options.transformer_seconds)
    build.write_index(options.out, trained=True)
    print(f"done {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
