"""What every training of the transformer reads: latents and prompt embeddings, made in a process of its own."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from diffusers import AutoencoderKLQwenImage
from torch import Tensor

from realchar.engine import still_vae
from tools.demo_base import architecture, embeddings, latents, pair_files, pairs, train_lora
from tools.demo_base.latents import Cache
from tools.demo_base.validate import Watched, watch

ENCODED = 36_000  # pairs in the latent cache, over all passes; all passes but the first are augmented
WATCHED = 64  # training pairs that are watched
VALIDATION = 32  # the last of the training pairs, kept out of the training to choose between versions

Prepared = tuple[Cache, dict[str, Tensor], list[Watched]]


def options_parser(text: str | None) -> argparse.ArgumentParser:
    """Return the options of a training, which its preparation shares."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--more", type=Path, help="more pairs, all for training")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--base-seconds", type=float, default=0.0, help="transformer: of them for the base")
    parser.add_argument("--resume", action="store_true", help="transformer: go on from the weights in --out")
    parser.add_argument("--from-version", type=Path, metavar="FILE", help="go on with this LoRA version")
    parser.add_argument(
        "--versions",
        type=train_lora.version,
        nargs="+",
        metavar="STEPS:RANK",
        default=train_lora.VERSIONS,
        help="LoRA versions to write; each takes up the one before, with a larger rank or the same",
    )
    parser.add_argument("--compile", action="store_true", help="compile the transformer's blocks (GPU)")
    parser.add_argument("--limit", type=int, default=100_000, help="train on the first pairs only")
    return parser


def training_files(options: argparse.Namespace) -> list[Path]:
    return pair_files.training(options.pairs, options.more)[:-VALIDATION][: options.limit]


def validation_files(options: argparse.Namespace) -> list[Path]:
    return pair_files.training(options.pairs, options.more)[-VALIDATION:][: options.limit]


def test_files(options: argparse.Namespace) -> list[Path]:
    return pair_files.held_out(options.pairs)[: options.limit]


def load_vae(base: Path, device: torch.device) -> AutoencoderKLQwenImage:
    """Return the VAE as stored, so rounded to bfloat16; raises SystemExit where there is none."""
    if not (base / "vae" / "config.json").is_file():
        raise SystemExit(f"{str(base)!r} holds no VAE; give the folder of a base, such as weights/demo.")
    vae = AutoencoderKLQwenImage.from_pretrained(base / "vae", torch_dtype=torch.float32)
    return vae.to(device).eval().requires_grad_(False)


def stand_in(device: torch.device) -> tuple[Cache, dict[str, Tensor]]:
    """Return random latents and embeddings of the shapes to come, for the compiler."""
    draw = torch.Generator().manual_seed(0)
    side, width = architecture.SIDE // 8, architecture.TEXT_WIDTH
    looks = torch.randn(1, 8, 3, architecture.VAE["z_dim"], side, side, generator=draw)
    cache = Cache(looks.bfloat16(), (torch.rand(1, 8, 1, side, side, generator=draw) > 0.97).bfloat16())
    lengths = {prompt: 210 + 9 * index for index, prompt in enumerate(embeddings.PROMPT_LIST)}
    embeds = {prompt: torch.randn(4, length, width, generator=draw) for prompt, length in lengths.items()}
    return cache.to(device), {prompt: values.bfloat16().to(device) for prompt, values in embeds.items()}


def read_with_eyes(files: list[Path], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the pairs as uint8 (N, 2, 3, H, W) and the spots of their eyes (N, 1, H, W)."""
    pixels = pairs.read(files, architecture.SIDE)
    return pixels.to(device), pairs.spots(pair_files.eyes(files), pixels.shape[-1]).to(device)


def prepare(options: argparse.Namespace, device: torch.device, scratch: Path) -> Prepared:
    """Encode the pairs and read the prompts, at the same time."""
    files = training_files(options)
    processes = embeddings.start(options.out, options.pairs, scratch, min(embeddings.POOL, len(files)))
    vae = load_vae(options.out, device)
    pixels, spots = read_with_eyes(files, device)
    others = {"validation": validation_files(options), "held out": test_files(options)}
    with still_vae.planar():
        repeats = max(2, ENCODED // len(files)) if device.type == "cuda" else 2
        cache = latents.latent_cache(pixels, spots, vae, repeats, half_way=options.base_seconds > 0)
        watched = []
        for name, some in others.items():
            unseen, eyes = read_with_eyes(some, device)
            watched.append(watch(name, unseen, eyes, latents.latent_cache(unseen, eyes, vae, 1).latents[0]))
        watched.append(watch("training", pixels[:WATCHED], spots[:WATCHED], cache.latents[0, :WATCHED]))
    return cache, embeddings.join(processes, scratch, device), watched


def load(path: Path, device: torch.device) -> Prepared:
    cache, embeds, watched = torch.load(path, map_location=device, weights_only=True)
    return Cache(*cache), embeds, [Watched(*some) for some in watched]


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("part")
    parser.add_argument("--prepared", type=Path, required=True)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as scratch:
        cache, embeds, watched = prepare(options, device, Path(scratch))
    torch.save((tuple(cache), embeds, [tuple(some) for some in watched]), options.prepared)


if __name__ == "__main__":
    main()
