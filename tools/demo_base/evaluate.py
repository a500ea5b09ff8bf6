"""Measure conversions of the held-out drawings, made by `realchar batch`, against their photo renderings.

    python -m tools.demo_base.evaluate split --pairs DIR --out held_out
    realchar batch held_out -o results/none --no-stamp --seed 0 --weights none
    realchar batch held_out -o results/v83011 --no-stamp --seed 0 --weights demo_real_v83011
    python -m tools.demo_base.evaluate score --pairs DIR --results results/none results/v83011 --sheet sheet.webp
    python -m tools.demo_base.evaluate vae --pairs DIR --base weights/demo

`score` prints PSNR in dB, SSIM, the ratio of gradient energy (1: as much detail as the photo rendering) and the PSNR
of the eyes, where DIR says where they are (see render.landmarks), beside those of the unchanged drawing and of the best
global colour map, a quadratic one fitted on training pairs.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from realchar.engine import still_vae
from tools.demo_base import metrics, pair_files, pairs, prepared, train_vae

COLOUR_MAP_PAIRS = 125  # training pairs that the colour map is fitted on
LABEL = 18  # pixels above each row of the sheet
CLOSE_UP, ENLARGED = (80, 36), 6  # pixels of the picture, width and height; times


class Score(NamedTuple):
    """Means over pictures."""

    psnr: float
    ssim: float
    detail: float
    eyes: float


def as_tensor(image: Image.Image) -> Tensor:
    """Return (1, 3, H, W) in 0…1."""
    return torch.from_numpy(np.asarray(image, dtype=np.float32)).permute(2, 0, 1)[None] / 255


def psnr(one: Image.Image, other: Image.Image) -> float:
    return float(metrics.psnr(as_tensor(one), as_tensor(other), span=1))


def ssim(one: Image.Image, other: Image.Image, window: int = 7) -> float:
    """Return the mean structural similarity of the grey pictures (uniform windows, sample covariance)."""
    x, y = (as_tensor(image.convert("L").convert("RGB"))[:, :1].double() for image in (one, other))

    def mean(values: Tensor) -> Tensor:
        return F.avg_pool2d(values, window, stride=1)

    unbiased = window**2 / (window**2 - 1)
    mx, my = mean(x), mean(y)
    vx, vy, vxy = (unbiased * (mean(a * b) - mean(a) * mean(b)) for a, b in ((x, x), (y, y), (x, y)))
    c1, c2 = 0.01**2, 0.03**2
    similarity = (2 * mx * my + c1) * (2 * vxy + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
    return float(similarity.mean())


def detail(image: Image.Image) -> float:
    return float(metrics.gradient_energy(as_tensor(image)))


def score(outputs: list[Image.Image], targets: list[Image.Image], eyes: list[pair_files.Eyes]) -> Score:
    """Return the means over the pictures; that of the eyes is NaN where no picture's eyes are known."""
    pictures = list(zip(outputs, targets, strict=True))
    found = [(psnr(o, t), ssim(o, t), detail(o) / detail(t)) for o, t in pictures]
    spots = pairs.spots(eyes, targets[0].height)
    of_eyes = [
        float(metrics.psnr(as_tensor(o), as_tensor(t), span=1, weight=spot))
        for (o, t), spot in zip(pictures, spots, strict=True)
        if spot.any()
    ]
    whole, similarity, ratio = np.mean(found, axis=0).tolist()
    return Score(whole, similarity, ratio, sum(of_eyes) / len(of_eyes) if of_eyes else float("nan"))


class ColourMap:
    """The best map from a pixel's colour to the photo's, of second degree, by least squares over training pairs."""

    def __init__(self, drawings: list[Path]) -> None:
        gram, moments = np.zeros((10, 10)), np.zeros((10, 3))
        for file in drawings:
            x = self._terms(np.asarray(_open(file)) / 255)
            y = np.asarray(_open(pair_files.photo_of(file))).reshape(-1, 3) / 255
            gram += x.T @ x
            moments += x.T @ y
        self.matrix = np.linalg.solve(gram, moments)

    def __call__(self, image: Image.Image) -> Image.Image:
        pixels = np.asarray(image) / 255
        mapped = (self._terms(pixels) @ self.matrix).reshape(pixels.shape).clip(0, 1)
        return Image.fromarray((mapped * 255).round().astype(np.uint8), "RGB")

    @staticmethod
    def _terms(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
        r, g, b = pixels.reshape(-1, 3).T
        return np.stack([np.ones_like(r), r, g, b, r * r, g * g, b * b, r * g, r * b, g * b], 1)


def sheet(rows: dict[str, list[Image.Image]]) -> Image.Image:
    """Return the rows of pictures, each under its name."""
    width, height = next(iter(rows.values()))[0].size
    canvas = Image.new("RGB", (width * max(map(len, rows.values())), (height + LABEL) * len(rows)), "white")
    draw = ImageDraw.Draw(canvas)
    for y, (name, row) in enumerate(rows.items()):
        draw.text((4, y * (height + LABEL) + 3), name, fill="black")
        for x, image in enumerate(row):
            canvas.paste(image, (x * width, y * (height + LABEL) + LABEL))
    return canvas


def close_up(image: Image.Image, eyes: pair_files.Eyes) -> Image.Image:
    """Return both eyes, six times as large."""
    (width, height), (across, down) = image.size, CLOSE_UP
    x, y = (sum(eye[axis] for eye in eyes) / len(eyes) for axis in (0, 1))
    left, top = x * width - across / 2, y * height - down / 2
    box = (round(left), round(top), round(left) + across, round(top) + down)
    return image.crop(box).resize((across * ENLARGED, down * ENLARGED), Image.Resampling.BICUBIC)


def _open(file: Path) -> Image.Image:
    with Image.open(file) as image:
        return image.convert("RGB")


def run_split(options: argparse.Namespace) -> None:
    """Copy the held-out drawings into a folder of their own."""
    options.out.mkdir(parents=True, exist_ok=True)
    for file in pair_files.held_out(options.pairs):
        shutil.copy(file, options.out / file.name)


def run_score(options: argparse.Namespace) -> None:
    """Print the table over the held-out drawings that all result folders hold, and draw the sheet."""
    files = [
        file
        for file in pair_files.held_out(options.pairs)
        if all((folder / f"{file.stem}.png").exists() for folder in options.results)
    ]
    if not files:
        raise SystemExit(
            "No held-out drawing has a result in every folder; run `realchar batch` on what `split` writes."
        )
    training = pair_files.training(options.pairs)
    if not training:
        raise SystemExit(
            f"{str(options.pairs)!r} has no pairs besides the {pair_files.HELD_OUT} held-out ones; render more."
        )
    colours = ColourMap(training[:: max(1, len(training) // COLOUR_MAP_PAIRS)])
    drawings, photos = [_open(file) for file in files], [_open(pair_files.photo_of(file)) for file in files]
    rows = {folder.name: [_open(folder / f"{file.stem}.png") for file in files] for folder in options.results}
    eyes = pair_files.eyes(files)
    print(
        f"| {len(files)} held-out pairs | PSNR | SSIM | gradient ratio | eyes' PSNR |\n| --- | --- | --- | --- | --- |"
    )
    baselines = {"drawing unchanged": drawings, "best global colour map": [colours(image) for image in drawings]}
    for name, outputs in (baselines | rows).items():
        found = score(outputs, photos, eyes)
        print(f"| {name} | {found.psnr:.2f} | {found.ssim:.3f} | {found.detail:.2f} | {found.eyes:.2f} |", flush=True)
    shown = {"drawing": drawings, **rows, "photo rendering": photos}
    if options.eyes:
        known = [index for index, found in enumerate(eyes) if found][: options.columns]
        near = {name: [close_up(row[index], eyes[index]) for index in known] for name, row in shown.items()}
        if known:
            sheet(near).save(options.eyes, quality=88, method=6)
    if options.sheet:
        some = slice(None, None, max(1, len(files) // options.columns))
        picture = sheet({name: row[some][: options.columns] for name, row in shown.items()})
        picture.save(options.sheet, quality=88, method=6)


@torch.inference_mode()
def run_vae(options: argparse.Namespace) -> None:
    """Print how well the VAE gives back the held-out pictures."""
    vae = prepared.load_vae(options.base, torch.device("cpu"))
    with still_vae.planar():
        drawings, photos = train_vae.reconstruction_psnr(pairs.read(pair_files.held_out(options.pairs)), vae)
    print(f"VAE: drawings {drawings:.2f} dB, photo renderings {photos:.2f} dB, all {(drawings + photos) / 2:.2f} dB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run in (("split", run_split), ("score", run_score), ("vae", run_vae)):
        command = commands.add_parser(name, help=run.__doc__)
        command.add_argument("--pairs", type=Path, required=True)
        command.set_defaults(run=run)
        if name == "split":
            command.add_argument("--out", type=Path, required=True)
        if name == "vae":
            command.add_argument("--base", type=Path, required=True)
        if name == "score":
            command.add_argument("--results", type=Path, nargs="+", required=True, metavar="DIR")
            command.add_argument("--sheet", type=Path, help="a contact sheet, as WebP or PNG")
            command.add_argument("--eyes", type=Path, help="a sheet of the first pictures' eyes, six times as large")
            command.add_argument("--columns", type=int, default=8, help="pictures on the sheet")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
