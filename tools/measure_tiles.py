"""Measures what tiles cost and save: the VAE of a base decodes and encodes one picture whole, in tiles and as diffusers does.

    python -m tools.measure_tiles --base weights/demo --size 1024

Prints, for each way, the seconds, the memory above the weights and the largest difference to the whole picture, whose
values lie in -1…1. On a graphics card memory is the allocator's peak, on the CPU the tensors that live at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from realchar.bench.vae import measure_vae
from realchar.engine.devices import compute_dtype, find_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--size", type=int, default=1024, help="pixels of a side")
    parser.add_argument("--tiles", type=int, nargs="+", default=[512, 256, 128], help="pixels of their sides")
    options = parser.parse_args()
    device, size = find_device("auto"), (options.size, options.size)
    direction = ""
    for row in measure_vae(options.base / "vae", size, tuple(options.tiles), device, compute_dtype(device)):
        if row.direction != direction:
            direction = row.direction
            print(
                f"| {direction} {size[0]}x{size[1]} | tiles | s | GB | largest difference |\n| --- | --- | --- | --- | --- |"
            )
        tiles = "as diffusers cuts" if row.tiles is None else row.tiles
        print(f"| {row.way} | {tiles} | {row.s:.2f} | {row.gb:.2f} | {row.max_difference:.1g} |", flush=True)


if __name__ == "__main__":
    main()
