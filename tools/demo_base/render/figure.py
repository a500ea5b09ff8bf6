"""The morphed and posed character, once as photographed and once with the drawing's large eyes; and the camera."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tools.demo_base.render.character import Character
from tools.demo_base.render.human import Human
from tools.demo_base.render.maths import Array, rotation, smoothstep, unit
from tools.demo_base.render.mesh import vertex_normals
from tools.demo_base.render.shape import DRAWN_EYES

MAX_NECK_TURN = 28  # degrees of the head against the shoulders
SENSOR = 36  # millimetres
LARGER_X, LARGER_Y, EYE_RADIUS = 0.30, 0.42, 0.30  # how much wider and taller drawn eyes are, and how far it reaches
HEADROOM = {  # decimetres of hair above the head
    "afro": 0.62,
    "bun": 0.30,
    "sideswept": 0.32,
    "messy": 0.30,
    "slick": 0.28,
    "curtain": 0.26,
}


@dataclass(frozen=True)
class Head:
    rotation: Array  # (3, 3): columns are right as the viewer sees it, up and forward
    centre: Array  # (3,) of the skull
    ears: Array  # (3,) between them
    chin: Array  # (3,)

    @property
    def right(self) -> Array:
        return self.turned(1.0, 0, 0)

    @property
    def up(self) -> Array:
        return self.turned(0, 1.0, 0)

    @property
    def forward(self) -> Array:
        return self.turned(0, 0, 1.0)

    def turned(self, x: float, y: float, z: float) -> Array:
        """Return a direction of the upright head as the posed one has it."""
        direction: Array = self.rotation @ np.array([x, y, z])
        return direction


@dataclass(frozen=True)
class Look:
    """One of the two versions of the same character."""

    cage: Array  # (N, 3) the base mesh's vertices
    points: Array  # (n, 3) the subdivided bust
    normals: Array  # (n, 3)
    eyes: dict[str, Array]  # side -> the eyeball's vertices (k, 3)


@dataclass(frozen=True)
class Camera:
    """A camera that looks from `place` at `target`, upright."""

    place: Array  # (3,)
    target: Array  # (3,)
    focus: float  # decimetres from the camera to the eyes


@dataclass(frozen=True)
class Figure:
    photo: Look
    drawing: Look
    head: Head
    camera: Camera
    eyes: Array  # (3,) the middle between them, where the lights point


def enlarge_eyes(points: Array, centre: Array) -> Array:
    """Return the points, magnified in the picture's plane around an eye, smoothly and only on the face's front."""
    offset = points - centre
    near = np.exp(-(offset[..., 0] ** 2 + offset[..., 1] ** 2) / EYE_RADIUS**2)
    near = near * smoothstep(0.75, 1.0, points[..., 2] - centre[2] + 1.2)
    out = points.copy()
    out[..., 0] += offset[..., 0] * LARGER_X * near
    out[..., 1] += offset[..., 1] * LARGER_Y * near
    return out


def build(human: Human, character: Character) -> Figure:
    pose = character.pose
    head_yaw = float(np.clip(pose.yaw - pose.body_yaw, -MAX_NECK_TURN, MAX_NECK_TURN))
    body_turn = rotation((0, 1, 0), pose.yaw - head_yaw)
    shaped = human.morph(character.shape)
    opened = human.morph(DRAWN_EYES, shaped)
    drawn = opened
    for centre in [human.eye(side, opened).mean(0) for side in "lr"]:
        drawn = enlarge_eyes(drawn, centre)
    # a drawn eyeball is fitted to a round one and only then enlarged
    eyeballs = human.pose(opened, pose, head_yaw)[0] @ body_turn.T
    drawing = _look(human, human.pose(drawn, pose, head_yaw)[0] @ body_turn.T, eyeballs)
    posed, frame = human.pose(shaped, pose, head_yaw)
    cage = posed @ body_turn.T
    photo = _look(human, cage, cage)
    pivot = human.joint("head", shaped)

    def place(offset: tuple[float, float, float]) -> Array:
        placed: Array = body_turn @ frame.place(pivot + np.array(offset))
        return placed

    head = Head(body_turn @ frame.rotation, place((0, 0.55, 0.22)), place((0, 0.1, 0.5)), place((0, -0.8, 1.0)))
    left, right = (human.eye(side, cage).mean(0) for side in "lr")
    eyes = (left + right) / 2
    return Figure(photo, drawing, head, _camera(character, photo.points, head, eyes), eyes)


def _look(human: Human, cage: Array, eyeballs: Array) -> Look:
    points = human.bust.operator @ cage
    eyes = {side: human.eye(side, eyeballs) for side in "lr"}
    return Look(cage, points, vertex_normals(points, human.bust.quads), eyes)


def _camera(character: Character, points: Array, head: Head, eyes: Array) -> Camera:
    """Frame the head: `shot.frame` of the picture from chin to crown, room for hair above."""
    shot, style = character.shot, character.hair.style
    top = points[:, 1].max()
    height = (top - head.chin[1]) / shot.frame + (0.5 if style == "afro" else 0)
    distance = height * shot.focal / SENSOR
    middle = top + HEADROOM.get(style, 0.2) + height * (shot.offset_y + 0.06) - height / 2
    target = np.array([head.ears[0] * 0.75 + shot.offset_x * 10, middle, head.ears[2]])
    place = target + np.array([0, shot.height * distance, distance])
    in_focus = eyes + head.turned(0, 0, 0.12)
    return Camera(place, target, float(np.dot(in_focus - place, unit(target - place))))
