"""Writes one picture a style.

python -m tools.demo_base.styles --out DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tools.demo_base.styles.cartoon_hat import draw_cartoon_hat
from tools.demo_base.styles.chibi import draw_chibi
from tools.demo_base.styles.flat import draw_flat
from tools.demo_base.styles.lineart import draw_lineart
from tools.demo_base.styles.painterly import draw_painterly
from tools.demo_base.styles.pixel import draw_pixel
from tools.demo_base.styles.screentone import draw_screentone

STYLES: dict[str, Callable[[], Image.Image]] = {
    "flat": draw_flat,
    "lineart": draw_lineart,
    "screentone": draw_screentone,
    "chibi": draw_chibi,
    "painterly": draw_painterly,
    "pixel": draw_pixel,
    "cartoon_hat": draw_cartoon_hat,
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.demo_base.styles", description="Draw one picture a style.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the pictures; is made")
    out: Path = parser.parse_args(argv).out
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in STYLES.items():
        draw().save(out / f"{name}.png")


if __name__ == "__main__":
    main()
