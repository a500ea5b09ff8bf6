"""Measure a base on held-out pairs through the product's engine, and draw a contact sheet.

    python -m tools.demo_base.evaluate --base weights/demo --pairs DIR --count 8 --cfg 1 4 7 9 --sheet sheet.png

PSNR in dB, SSIM on grey (windows of 7 pixels) and the ratio of gradient energy (1: as much detail as the photo
rendering) stand beside those of the unchanged drawing. Rows of the sheet: drawing, one a CFG value, photo rendering.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from realchar.catalog import load_base
from realchar.engine.pipeline import Engine
from realchar.presets import NEGATIVE, PROMPTS
from realchar.schema import Decoded, EditRequest
from tools.demo_base import pairs


def convert(engine: Engine, picture: Image.Image, request: EditRequest) -> Image.Image:
    """Return the converted picture; its sides must be multiples of 32."""
    last = None
    for event in engine.run(request, picture, (0, 0, *picture.size), []):
        last = event
    assert isinstance(last, Decoded)
    return last.image


def as_tensor(image: Image.Image) -> Tensor:
    """Return (1, 3, H, W) in 0…1."""
    return torch.from_numpy(np.asarray(image, dtype=np.float32)).permute(2, 0, 1)[None] / 255


def psnr(one: Image.Image, other: Image.Image) -> float:
    return float(-10 * torch.log10(((as_tensor(one) - as_tensor(other)) ** 2).mean()))


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
    pixels = as_tensor(image)
    return float(pixels.diff(dim=-1).abs().mean() + pixels.diff(dim=-2).abs().mean())


def report(label: str, outputs: list[Image.Image], targets: list[Image.Image], seconds: float = 0.0) -> None:
    """Print the means over the pairs."""
    found = [(psnr(o, t), ssim(o, t), detail(o) / detail(t)) for o, t in zip(outputs, targets, strict=True)]
    means = np.mean(found, axis=0)
    timing = f", {seconds / len(outputs):.2f} s a picture" if seconds else ""
    print(f"{label}: PSNR {means[0]:.2f} SSIM {means[1]:.3f} gradient ratio {means[2]:.2f}{timing}", flush=True)


def sheet(rows: list[list[Image.Image]], columns: int) -> Image.Image:
    width, height = rows[0][0].size
    canvas = Image.new("RGB", (width * min(columns, len(rows[0])), height * len(rows)))
    for y, row in enumerate(rows):
        for x, image in enumerate(row[:columns]):
            canvas.paste(image, (x * width, y * height))
    return canvas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--count", type=int, default=8, help="held-out pairs, of 64")
    parser.add_argument("--cfg", type=float, nargs="+", default=[7.0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompt", default=PROMPTS["base"])
    parser.add_argument("--negative", default=NEGATIVE)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sheet", type=Path)
    options = parser.parse_args()
    engine = Engine.load(load_base(options.base), options.device)
    files = pairs.held_out(options.pairs)[:: max(1, pairs.HELD_OUT // options.count)][: options.count]
    inputs, targets = ([Image.open(f).convert("RGB") for f in side] for side in (files, map(pairs.photo_of, files)))
    report(f"unchanged ({len(files)} pairs)", inputs, targets)
    rows = [inputs]
    for cfg in options.cfg:
        request = EditRequest(options.prompt, options.negative, options.steps, cfg)
        began = time.monotonic()
        rows.append([convert(engine, picture, request) for picture in inputs])
        report(
            f"cfg {cfg:g}, {options.steps} steps on {engine.device_name}", rows[-1], targets, time.monotonic() - began
        )
    if options.sheet:
        sheet([*rows, targets], 8).save(options.sheet)


if __name__ == "__main__":
    main()
