"""Blender as a photo studio: two scenes that share a camera, objects that come and go with each character. Needs bpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bpy
import numpy as np
from mathutils import Vector
from PIL import Image

from tools.demo_base.render import exr, materials, scenes
from tools.demo_base.render.figure import SENSOR, Camera
from tools.demo_base.render.maths import METRES, Array, to_metres

APERTURE = 4.5  # f-number
LIGHTS = ("key", "fill", "rim", "hair")


@dataclass(frozen=True)
class AreaLight:
    place: Array  # (3,) decimetres
    target: Array  # (3,) decimetres
    size: float  # metres
    watts: float
    colour: tuple[float, ...]  # linear


class Stage:
    def __init__(self, size: int) -> None:
        bpy.ops.wm.read_factory_settings(use_empty=True)
        self.size = size
        self.photo = bpy.context.scene
        self.photo.name = "photo"
        self.drawing = bpy.data.scenes.new("drawing")
        scenes.photo(self.photo, size)
        scenes.drawing(self.drawing, size)
        self.materials = materials.build()
        self._camera = self._new_object("camera", bpy.data.cameras.new("camera"), self.photo, self.drawing)
        self._camera.data.sensor_width = SENSOR
        self.photo.camera = self.drawing.camera = self._camera
        self._lights = {name: self._new_object(name, bpy.data.lights.new(name, "AREA"), self.photo) for name in LIGHTS}
        self._world, self._picture = scenes.photo_world(self.photo, size)
        scenes.black_world(self.drawing)
        self._objects: list[Any] = []

    @staticmethod
    def _new_object(name: str, data: Any, *to: Any) -> Any:
        item = bpy.data.objects.new(name, data)
        for scene in to:
            scene.collection.objects.link(item)
        return item

    def add_mesh(
        self, scene: Any, name: str, points: Array, faces: Array, material: str, attributes: dict[str, Array]
    ) -> Any:
        """Add a smooth mesh of points (n, 3) and faces (F, 3 or 4) with vectors (n, 3) on its vertices."""
        mesh = bpy.data.meshes.new(name)
        count, corners = faces.shape
        mesh.vertices.add(len(points))
        mesh.vertices.foreach_set("co", to_metres(points).ravel())
        mesh.loops.add(count * corners)
        mesh.loops.foreach_set("vertex_index", faces.astype(np.int32).ravel())
        mesh.polygons.add(count)
        mesh.polygons.foreach_set("loop_start", np.arange(0, count * corners, corners, dtype=np.int32))
        mesh.update(calc_edges=True)
        mesh.shade_smooth()
        return self._add(scene, name, mesh, material, attributes)

    def add_strands(
        self, scene: Any, name: str, points: Array, radius: Array, material: str, attributes: dict[str, Array]
    ) -> Any:
        """Add curves of points (n, m, 3) and radius (n, m) with vectors (n, m, 3) on their points."""
        count, length, _ = points.shape
        curves = bpy.data.hair_curves.new(name)
        curves.add_curves([length] * count)
        curves.attributes["position"].data.foreach_set("vector", to_metres(points).ravel())
        radii = curves.attributes.get("radius") or curves.attributes.new("radius", "FLOAT", "POINT")
        radii.data.foreach_set("value", np.ascontiguousarray(radius * METRES, np.float32).ravel())
        return self._add(scene, name, curves, material, attributes)

    def _add(self, scene: Any, name: str, data: Any, material: str, attributes: dict[str, Array]) -> Any:
        for key, values in attributes.items():
            attribute = data.attributes.new(key, "FLOAT_VECTOR", "POINT")
            attribute.data.foreach_set("vector", np.ascontiguousarray(values, np.float32).ravel())
        data.materials.append(self.materials[material].block)
        item = self._new_object(name, data, scene)
        self._objects.append(item)
        return item

    def clear(self) -> None:
        """Remove what the last character added."""
        for item in self._objects:
            data = item.data
            bpy.data.objects.remove(item)
            (bpy.data.meshes if isinstance(data, bpy.types.Mesh) else bpy.data.hair_curves).remove(data)
        self._objects = []

    def aim_camera(self, camera: Camera, focal: float) -> None:
        self._aim(self._camera, camera.place, camera.target)
        self._camera.data.lens = focal
        self._camera.data.dof.focus_distance = camera.focus * METRES
        self._camera.data.dof.aperture_fstop = APERTURE

    def set_light(self, name: str, light: AreaLight) -> None:
        item = self._lights[name]
        self._aim(item, light.place, light.target)
        item.data.size = light.size
        item.data.energy = light.watts
        item.data.color = light.colour
        item.hide_render = light.watts <= 0

    @staticmethod
    def _aim(item: Any, place: Array, target: Array) -> None:
        item.location = to_metres(place)
        direction = Vector(to_metres(target)) - Vector(to_metres(place))
        item.rotation_euler = direction.to_track_quat("-Z", "Y").to_euler()

    def set_background(self, picture: Array, strength: float) -> None:
        """Show a picture (size, size, 3), linear, and light the scene softly in its colours."""
        pixels = np.ones((self.size, self.size, 4), np.float32)
        pixels[..., :3] = picture[::-1]  # Blender's first row is the lowest
        self._picture.pixels.foreach_set(pixels.ravel())
        self._picture.update()
        half = self.size // 2
        high, low = picture[:half].mean((0, 1)), picture[half:].mean((0, 1))
        self._world.set_colour("high", 0.55 * high / max(high.mean(), 0.05) * 0.5 + 0.28)
        self._world.set_colour("low", 0.4 * low / max(low.mean(), 0.05) * 0.35 + 0.1)
        self._world.set_value("strength", strength)

    def render(self, folder: Path) -> tuple[exr.Channels, Array]:
        """Render both scenes through files in `folder`; return the drawing's passes and the photo (n, n, 3), sRGB."""
        buffers, photo = folder / "drawing.exr", folder / "photo.png"
        self._render(self.drawing, buffers, depth_of_field=False)
        self._render(self.photo, photo, depth_of_field=True)
        with Image.open(photo) as image:
            pixels = np.asarray(image.convert("RGB"), np.float32) / 255
        return exr.read(buffers), pixels

    def _render(self, scene: Any, file: Path, depth_of_field: bool) -> None:
        self._camera.data.dof.use_dof = depth_of_field
        scene.render.filepath = str(file)
        bpy.ops.render.render(write_still=True, scene=scene.name)
