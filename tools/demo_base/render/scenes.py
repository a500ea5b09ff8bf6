"""Blender's two scenes: "photo", path traced by Cycles, and "drawing", one sample a pixel into buffers. Needs bpy."""

from __future__ import annotations

from typing import Any

import bpy

from tools.demo_base.render.materials import BUFFERS
from tools.demo_base.render.nodes import Nodes

SAMPLES = 10  # a pixel, before denoising
SUPERSAMPLING = 2  # the drawing is made larger by this


def photo(scene: Any, size: int) -> None:
    """Set up path tracing at few samples with few bounces, denoised."""
    _common(scene, size)
    cycles = scene.cycles
    settings = {
        "samples": SAMPLES,
        "use_adaptive_sampling": True,
        "adaptive_threshold": 0.03,
        "adaptive_min_samples": 12,
        "use_denoising": True,
        "denoiser": "OPENIMAGEDENOISE",
        "denoising_input_passes": "RGB_ALBEDO_NORMAL",
        "denoising_prefilter": "FAST",
        "denoising_quality": "BALANCED",
        "max_bounces": 4,
        "diffuse_bounces": 1,
        "glossy_bounces": 1,
        "transmission_bounces": 3,
        "transparent_max_bounces": 2,
        "caustics_reflective": False,
        "caustics_refractive": False,
        "sample_clamp_indirect": 4,
        "filter_width": 1.2,
        "use_light_tree": True,
    }
    _set(cycles, settings)
    scene.view_settings.view_transform = "AgX"
    scene.view_settings.look = "AgX - Medium High Contrast"
    _set(
        scene.render.image_settings,
        {"file_format": "PNG", "color_mode": "RGB", "color_depth": "8", "compression": 10},
    )


def drawing(scene: Any, size: int) -> None:
    """Set up one unfiltered sample a pixel, with depth, normals and the materials' buffers as passes."""
    _common(scene, size * SUPERSAMPLING)
    settings = {
        "samples": 1,
        "use_adaptive_sampling": False,
        "use_denoising": False,
        "max_bounces": 0,
        "transparent_max_bounces": 2,
        "pixel_filter_type": "BOX",
        "filter_width": 0.01,
    }
    _set(scene.cycles, settings)
    layer = scene.view_layers[0]
    layer.use_pass_z = True
    layer.use_pass_normal = True
    for name in BUFFERS:
        buffer = layer.aovs.add()
        buffer.name = name
        buffer.type = "COLOR"
    file = {
        "media_type": "MULTI_LAYER_IMAGE",
        "file_format": "OPEN_EXR_MULTILAYER",
        "use_exr_interleave": True,
        "exr_codec": "NONE",
        "color_depth": "32",
    }
    _set(scene.render.image_settings, file)


def photo_world(scene: Any, size: int) -> tuple[Nodes, Any]:
    """Give the scene a background picture for the camera and a soft sky for the light; return its nodes and picture."""
    world = bpy.data.worlds.new("photo")
    nodes = Nodes(world)
    scene.world = world
    coordinates, path = nodes.add("TexCoord"), nodes.add("LightPath")
    picture = bpy.data.images.new("background", size, size, float_buffer=True, alpha=False)
    picture.colorspace_settings.name = "Linear Rec.709"
    texture = nodes.add("TexImage", image=picture, extension="EXTEND")
    nodes.plug(texture, Vector=coordinates.outputs["Window"])
    height = nodes.split(coordinates.outputs["Generated"])[2]
    sky = nodes.mix(nodes.ramp(height, -0.3, 0.5), nodes.colour("low"), nodes.colour("high"))
    light, seen = nodes.add("Background"), nodes.add("Background")
    nodes.plug(light, Color=sky, Strength=nodes.value("strength"))
    nodes.plug(seen, Color=texture.outputs[0])
    by_ray = nodes.mix_shaders(path.outputs["Is Camera Ray"], light.outputs[0], seen.outputs[0])
    nodes.output(by_ray, "OutputWorld")
    world.cycles.sampling_method = "MANUAL"
    world.cycles.sample_map_resolution = 64
    return nodes, picture


def black_world(scene: Any) -> None:
    scene.world = bpy.data.worlds.new("drawing")
    scene.world.color = (0, 0, 0)


def _common(scene: Any, pixels: int) -> None:
    render = {
        "engine": "CYCLES",
        "threads_mode": "FIXED",
        "threads": 1,
        "use_persistent_data": False,
        "use_compositing": False,
        "use_sequencer": False,
        "film_transparent": False,
        "resolution_x": pixels,
        "resolution_y": pixels,
        "resolution_percentage": 100,
    }
    _set(scene.render, render)
    _set(scene.cycles, {"device": "CPU", "use_auto_tile": False})
    _set(scene.cycles_curves, {"shape": "RIBBONS", "subdivisions": 2})


def _set(owner: Any, settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        setattr(owner, name, value)
