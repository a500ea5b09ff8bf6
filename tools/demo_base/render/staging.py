"""Put one character on the stage: what each object is in the photo and in the drawing. Needs bpy.

The drawing's buffers, per vertex: `tn` the normal it is shaded with (Blender's axes); `aux` the region (see
toon_layers.Region) and two values; `aux2` three more values. The order of the random draws is part of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tools.demo_base.render import eyes, fur, garment, hair, skin
from tools.demo_base.render.bvh import Bvh
from tools.demo_base.render.character import Character
from tools.demo_base.render.figure import Figure
from tools.demo_base.render.fur import Fur
from tools.demo_base.render.garment import Garment
from tools.demo_base.render.hair_styles import HANGING
from tools.demo_base.render.human import Human
from tools.demo_base.render.maths import Array, smoothstep, to_blender, unit
from tools.demo_base.render.mesh import compact, identity
from tools.demo_base.render.palette import Palette
from tools.demo_base.render.regions import Regions
from tools.demo_base.render.stage import Stage
from tools.demo_base.render.toon_layers import Region

CLOTH_THICKNESS = 0.0035  # metres
FLAT_NORMAL = (0, -1.0, 0)  # Blender's: towards the viewer
SMOOTHINGS = 24  # of the drawing's face


@dataclass(frozen=True)
class Staging:
    """What the functions below share for one character."""

    stage: Stage
    human: Human
    regions: Regions
    character: Character
    palette: Palette
    figure: Figure
    rng: np.random.Generator

    @property
    def female(self) -> bool:
        return self.character.person.female


def place(staging: Staging) -> None:
    """Add all objects of the character."""
    drawn_normals = _body(staging)
    _eyes(staging)
    _teeth(staging)
    cloth = _cloth(staging)
    _hair(staging, cloth)
    _face_hair(staging, drawn_normals)


def _columns(*values: Array | float, like: Array) -> Array:
    """Stack values along a new last axis, numbers repeated to the shape of `like`."""
    return np.stack([np.broadcast_to(value, like.shape) for value in values], -1)


def _body(staging: Staging) -> Array:
    """Add the bust to both scenes and return the drawing's normals (n, 3)."""
    stage, human, masks = staging.stage, staging.human, staging.human.masks
    photo, drawing = staging.figure.photo, staging.figure.drawing
    colour, roughness = skin.paint(staging.character, human, staging.palette, staging.rng)
    surface = np.column_stack([roughness, masks.lips, masks.beard])
    attributes = {"rest": human.bust.rest, "colour": colour, "surface": surface}
    stage.add_mesh(stage.photo, "body", photo.points, human.bust.quads, "skin", attributes)
    normals = _drawn_normals(staging)
    buffers = {
        "tn": to_blender(normals),
        "aux": _columns(Region.SKIN, masks.lips, masks.blush, like=masks.lips),
        "aux2": np.column_stack([masks.scalp, masks.beard, _under_nose(human.bust.rest)]),
    }
    stage.add_mesh(stage.drawing, "body drawn", drawing.points, human.bust.quads, "buffers", buffers)
    return normals


def _drawn_normals(staging: Staging) -> Array:
    """Return smoothed normals that on the face are mostly an ellipsoid's, so that shadows have clean edges."""
    human, head, look = staging.human, staging.figure.head, staging.figure.drawing
    normals = look.normals.copy()
    for _ in range(SMOOTHINGS):
        normals = 0.3 * normals + 0.7 * (human.smoothing @ normals)
    normals = unit(normals)
    middle = head.centre + head.turned(0, -0.5, -0.1)
    ellipsoid = unit((look.points - middle) / np.array([0.8, 1.15, 0.9]))
    face = smoothstep(6.1, 6.6, human.bust.rest[:, 1]) * smoothstep(0.2, 0.8, human.bust.rest[:, 2])
    return unit(normals * (1 - 0.80 * face[:, None]) + ellipsoid * 0.80 * face[:, None])


def _under_nose(rest: Array) -> Array:
    x, y, z = rest.T
    height = smoothstep(6.98, 6.90, y) * smoothstep(6.74, 6.79, y)
    shadow: Array = height * smoothstep(0.26, 0.2, np.abs(x)) * smoothstep(1.3, 1.4, z)
    return shadow


def _eyes(staging: Staging) -> None:
    stage, figure = staging.stage, staging.figure
    for side in "lr":
        ball = eyes.build(figure.photo.eyes[side], figure.head, figure.camera.place, drawn=False)
        stage.add_mesh(stage.photo, "eye", ball.points, ball.quads, "eye", {"eye": ball.directions})
    for side in "lr":
        ball = eyes.build(figure.drawing.eyes[side], figure.head, figure.camera.place, drawn=True)
        x, y, z = ball.directions.T
        buffers = {
            "tn": to_blender(ball.directions),
            "aux": _columns(Region.EYE, x, y, like=x),
            "aux2": _columns(z, 0.0, 0.0, like=x),
        }
        stage.add_mesh(stage.drawing, "eye drawn", ball.points, ball.quads, "buffers", buffers)


def _teeth(staging: Staging) -> None:
    stage, human = staging.stage, staging.human
    quads, rows = compact(human.teeth, identity(len(human.base.vertices)))
    points = rows @ staging.figure.photo.cage
    stage.add_mesh(stage.photo, "teeth", points, quads, "teeth", {})
    buffers = {"tn": points * 0, "aux": np.tile([Region.MOUTH, 0.0, 0.0], (len(points), 1)), "aux2": points * 0}
    stage.add_mesh(stage.drawing, "teeth drawn", points, quads, "buffers", buffers)


def _cloth(staging: Staging) -> Garment:
    stage = staging.stage
    cloth = garment.build(staging.human, staging.figure.photo.cage, staging.character.cloth.neckline, staging.rng)
    distance = cloth.from_neckline[:, 0]
    attributes = {"rest": cloth.rest, "aux2": np.column_stack([distance, distance, cloth.fade])}
    buffers = {
        "tn": to_blender(cloth.normals),
        "aux": _columns(Region.CLOTH, distance, cloth.rest[:, 1], like=distance),
        "aux2": cloth.rest,
    }
    for scene, name, material, values in (
        (stage.photo, "cloth", "cloth", attributes),
        (stage.drawing, "cloth drawn", "buffers", buffers),
    ):
        item = stage.add_mesh(scene, name, cloth.points, cloth.triangles, material, values)
        modifier = item.modifiers.new("thickness", "SOLIDIFY")
        modifier.thickness = CLOTH_THICKNESS
        modifier.offset = 0
    return cloth


def _hair(staging: Staging, cloth: Garment) -> None:
    stage, character, head = staging.stage, staging.character, staging.figure.head
    style = character.hair.style
    body = _collision(staging, cloth)
    strands = hair.build(character, staging.human, staging.regions, staging.figure, body)
    t = strands.along
    rng = np.random.default_rng(character.hair.seed + 5)
    of_lock = rng.random(2000)[strands.guide][:, None].repeat(t.shape[1], 1)
    of_strand = np.clip(0.45 * of_lock + 0.55 * rng.random((len(t), 1)), 0, 1)
    fine = style in ("afro", "crop")
    taper = 1 - 0.45 * t**4 if style in HANGING else 1 - 0.7 * t**2
    radius = (0.0054 if fine else 0.0058) * taper
    attributes = {"aux": _columns(Region.HAIR, of_strand, t, like=t)}
    stage.add_strands(stage.photo, "hair", strands.points, radius, "hair", attributes)
    normals = unit(strands.points - (head.centre + head.turned(0, -0.15, 0)))
    buffers = {
        "tn": to_blender(unit(normals * np.array([1, 0.9, 1]))),
        "aux": _columns(Region.HAIR, of_lock, t, like=t),
        "aux2": _columns(strands.guide[:, None], 0.0, 0.0, like=t),
    }
    radius = (0.012 if fine else 0.017) * (1 - 0.75 * t**3)
    stage.add_strands(stage.drawing, "hair drawn", strands.points, radius, "buffers", buffers)


def _collision(staging: Staging, cloth: Garment) -> Bvh:
    """Return the posed bust, not subdivided, with its clothes."""
    used, cage = np.unique(staging.human.cage, return_inverse=True)
    points = np.concatenate([staging.figure.photo.cage[used], cloth.points])
    faces = cage.reshape(-1, 4).tolist() + (cloth.triangles + len(used)).tolist()
    return Bvh(points, faces)


def _face_hair(staging: Staging, drawn_normals: Array) -> None:
    """Add brows, lashes (the drawing's are lines) and beard."""
    stage, human, head, rng = staging.stage, staging.human, staging.figure.head, staging.rng
    female, places = staging.female, staging.regions
    brows = fur.brows(places.brows, head, female, rng)
    towards_viewer = np.array([FLAT_NORMAL])
    _fur(staging, "brow", brows, Region.BROW, (0.0030 if female else 0.0034, 0.0085), 0.8, towards_viewer)
    lashes = fur.lashes(places.lashes, staging.figure.photo.cage, head, female, rng)
    t = fur.along(lashes)
    radius = (0.0026 if female else 0.0020) * (1 - 0.8 * t)
    stage.add_strands(stage.photo, "lash", lashes, radius, "lash", {"aux": _columns(0.0, 0.0, t, like=t)})
    if staging.character.beard == "beard":
        beard = fur.beard(human, places, head, rng)
        normals = unit(human.bust.at(places.beard, drawn_normals))
        _fur(staging, "beard", beard, Region.BEARD, (0.0040, 0.013), 0.7, to_blender(normals))


def _fur(
    staging: Staging,
    name: str,
    hairs: Fur,
    region: Region,
    radii: tuple[float, float],
    taper: float,
    normals: Array,
) -> None:
    """Add hairs of the face to both looks.

    `radii` are those of the roots (photo, drawing), in decimetres; `taper` is how much of them the tips lose; `normals`
    (n, 3), or (1, 3) for all, are the drawing's, in Blender's axes.
    """
    stage, figure = staging.stage, staging.figure
    for scene, look, material, radius in (
        (stage.photo, figure.photo, "brow", radii[0]),
        (stage.drawing, figure.drawing, "buffers", radii[1]),
    ):
        points = hairs.on(staging.human, look)
        t = fur.along(points)
        facing = np.broadcast_to(normals[:, None], points.shape)
        own = staging.rng.random((len(points), 1))
        attributes = {"aux": _columns(region, own, t, like=t), "tn": facing, "aux2": points * 0}
        stage.add_strands(scene, name, points, radius * (1 - taper * t**2), material, attributes)
