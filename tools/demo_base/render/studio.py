"""From a character to its two pictures. Needs bpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tools.demo_base.render import background, figure, lighting, materials, palette, photo, regions, staging, toon
from tools.demo_base.render.bvh import Bvh
from tools.demo_base.render.character import Character
from tools.demo_base.render.human import Human
from tools.demo_base.render.maths import Array, to_blender
from tools.demo_base.render.stage import Stage
from tools.demo_base.render.staging import Staging

STAGING_SEED, GRAIN_SEED = 99, 1  # added to the character's


class Studio:
    """The human and the stage, made once for all characters."""

    def __init__(self, wheel: Path, size: int) -> None:
        self.size = size
        self.human = Human.load(wheel)
        bust = self.human.bust
        self.regions = regions.find(self.human, Bvh(bust.rest, bust.triangles.tolist()))
        self.stage = Stage(size)

    def render(self, character: Character, scratch: Path) -> tuple[Array, Array]:
        """Return the drawing and the photo (size, size, 3), sRGB 0…1; `scratch` is a folder for Blender's files."""
        stage, shot = self.stage, character.shot
        colours = palette.mix(character)
        posed = figure.build(self.human, character)
        behind = background.paint(character.background, character.background_seed, self.size)
        rng = np.random.default_rng(character.seed + STAGING_SEED)
        try:
            stage.aim_camera(posed.camera, shot.focal)
            staging.place(Staging(stage, self.human, self.regions, character, colours, posed, rng))
            materials.colour(stage.materials, character, colours)
            lighting.light(stage, shot, colours, posed.eyes)
            stage.set_background(behind, shot.environment)
            buffers, traced = stage.render(scratch)
        finally:
            stage.clear()
        key = to_blender(lighting.key_direction(shot))
        drawing = toon.draw(buffers, character, colours, key, behind, self.size)
        return drawing, photo.develop(traced, np.random.default_rng(character.seed + GRAIN_SEED))
