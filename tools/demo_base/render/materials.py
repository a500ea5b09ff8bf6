"""Blender materials of the photo, and the one that writes the drawing's buffers. Needs bpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import bpy

from tools.demo_base.render.character import Character
from tools.demo_base.render.colours import to_linear
from tools.demo_base.render.nodes import Nodes, Socket
from tools.demo_base.render.palette import Palette

BUFFERS = ("tn", "aux", "aux2")  # vertex attributes that become passes: drawn normal, and two of mixed contents
LASH = (0.006, 0.005, 0.005)


@dataclass(frozen=True)
class Material:
    block: Any  # bpy.types.Material
    nodes: Nodes


Materials = dict[str, Material]


def build() -> Materials:
    """Add all materials to Blender's data, by name."""
    materials = {"buffers": _buffers(), "skin": _skin(), "eye": _eye(), "cloth": _cloth(), "teeth": _teeth()}
    return materials | {name: _fibre(name) for name in ("hair", "brow", "lash")}


def colour(materials: Materials, character: Character, palette: Palette) -> None:
    """Set what differs between characters."""
    iris = to_linear(character.eye_rgb)
    eye = materials["eye"].nodes
    eye.set_colour("iris", iris * 0.8)
    eye.set_colour("iris2", iris * 1.35)
    eye.set_colour("inner", iris * (1.3, 1.0, 0.6))
    eye.set_colour("limbus", iris * 0.18)
    cloth = materials["cloth"].nodes
    cloth.set_colour("first", to_linear(character.cloth.rgb))
    cloth.set_colour("second", to_linear(character.cloth.second_rgb))
    cloth.set_value("stripe", character.cloth.stripe)
    _colour_fibres(materials, palette)


def _colour_fibres(materials: Materials, palette: Palette) -> None:
    hair, brow, lash = (materials[name].nodes for name in ("hair", "brow", "lash"))
    fibre = palette.fibre
    hair.set_colour("a", fibre * (0.62, 0.60, 0.58))
    hair.set_colour("b", (fibre * (1.30, 1.32, 1.36)).clip(max=0.9))
    hair.set_colour("tip", (fibre * (1.18, 1.1, 1.05)).clip(max=0.92))
    light = min(1, float(fibre.mean()) * 2.5)
    hair.set_value("through", 0.12 + 0.33 * light)
    hair.set_value("glow", 0.03 + 0.05 * light)
    brows = palette.brows.clip(min=0.006)
    for name in ("a", "b", "tip"):
        brow.set_colour(name, brows * (1.1 if name == "b" else 1))
        lash.set_colour(name, LASH)
    for nodes in (hair, brow, lash):
        nodes.set_colour("gloss", 0.24 + 0.5 * fibre)


def _new(name: str) -> Material:
    block = bpy.data.materials.new(name)
    return Material(block, Nodes(block))


def _principled(nodes: Nodes, **inputs: Any) -> Any:
    shader = nodes.add("BsdfPrincipled")
    nodes.output(shader.outputs[0])
    nodes.plug(shader, **inputs)
    return shader


def _buffers() -> Material:
    """Write the vertex attributes into passes; what is seen stays black."""
    material = _new("buffers")
    nodes = material.nodes
    nodes.output(nodes.add("Emission").outputs[0])
    for name in BUFFERS:
        nodes.plug(nodes.add("OutputAOV", aov_name=name), Color=nodes.attribute(name))
    return material


def _skin() -> Material:
    """Colour and roughness come from `skin.paint`; pores are noise."""
    material = _new("skin")
    nodes = material.nodes
    pores = nodes.noise(nodes.attribute("rest"), 48, 2, 0.7)
    shade = nodes.grey(nodes.ramp(pores, 0.25, 0.75, 1.07, 0.90))
    roughness = nodes.split(nodes.attribute("surface"))[0]
    shader = _principled(
        nodes,
        Base_Color=nodes.mix(1.0, nodes.attribute("colour", "Color"), shade, "MULTIPLY"),
        Roughness=nodes.math("ADD", roughness, nodes.math("MULTIPLY", pores, 0.14)),
        Specular_IOR_Level=0.42,
        Subsurface_Weight=0.8,
        Subsurface_Radius=(1, 0.36, 0.2),
        Subsurface_Scale=0.0036,
        Normal=nodes.bump(pores, 0.5, 0.0013),
    )
    shader.subsurface_method = "BURLEY"
    return material


def _eye() -> Material:
    """Iris, limbus, pupil and veins by the direction from the eye's centre; the cornea is a coat."""
    material = _new("eye")
    nodes = material.nodes
    direction = nodes.attribute("eye")
    x = nodes.split(direction)
    squared = (nodes.math("MULTIPLY", x[0], x[0]), nodes.math("MULTIPLY", x[1], x[1]))
    radius = nodes.math("SQRT", nodes.math("ADD", *squared))
    iris = nodes.mix(nodes.ramp(_spokes(nodes, x), 0.35, 0.65, 0, 0.75), nodes.colour("iris"), nodes.colour("iris2"))
    iris = nodes.mix(nodes.ramp(radius, 0.14, 0.26, 0.55, 0.0), iris, nodes.colour("inner"))
    iris = nodes.mix(nodes.ramp(radius, 0.33, 0.43, 0.0, 0.85), iris, nodes.colour("limbus"))
    iris = nodes.mix(nodes.ramp(radius, 0.165, 0.145), iris, (0.004, 0.004, 0.004))
    white = nodes.mix(nodes.ramp(radius, 0.55, 0.95), (0.70, 0.66, 0.63), (0.62, 0.40, 0.35))
    veins = nodes.ramp(nodes.noise(direction, 14, 4, 0.7), 0.58, 0.75, 0, 0.25)
    white = nodes.mix(veins, white, (0.6, 0.22, 0.18))
    _principled(
        nodes,
        Base_Color=nodes.mix(nodes.ramp(radius, 0.405, 0.455), iris, white),
        Roughness=0.35,
        Coat_Weight=1,
        Coat_Roughness=0.015,
        Coat_IOR=1.42,
        Specular_IOR_Level=0.3,
    )
    return material


def _spokes(nodes: Nodes, x: Any) -> Socket:
    """Return noise that depends only on the angle about the optical axis."""
    flat = nodes.add("CombineXYZ")
    nodes.plug(flat, X=x[0], Y=x[1])
    angle = nodes.add("VectorMath", operation="NORMALIZE")
    nodes.put(angle.inputs[0], flat.outputs[0])
    return nodes.noise(angle.outputs[0], 5, 4)


def _cloth() -> Material:
    """A weave with trim at the neckline and, for some, stripes."""
    material = _new("cloth")
    nodes = material.nodes
    rest = nodes.attribute("rest")
    neckline = nodes.split(nodes.attribute("aux2"))  # distance, distance, fade
    x = nodes.split(rest)
    stripes = nodes.ramp(nodes.math("SINE", nodes.math("MULTIPLY", x[1], 16.0)), -0.1, 0.1)
    stripes = nodes.math("MULTIPLY", nodes.value("stripe"), stripes)
    second = nodes.math("MAXIMUM", nodes.ramp(neckline[0], 0.125, 0.115), stripes)
    colours = nodes.mix(second, nodes.colour("first"), nodes.colour("second"))
    fuzz = nodes.noise(rest, 60, 1, 0.6)
    warp, weft = (nodes.math("SINE", nodes.math("MULTIPLY", x[k], 150.0)) for k in (0, 1))
    weave = nodes.math("MULTIPLY", warp, weft)
    fade = nodes.math("MULTIPLY", nodes.ramp(fuzz, 0.2, 0.8, 0.76, 1.16), neckline[2])
    height = nodes.math("ADD", nodes.math("MULTIPLY", weave, 0.25), fuzz)
    _principled(
        nodes,
        Base_Color=nodes.mix(1.0, colours, nodes.grey(fade), "MULTIPLY"),
        Roughness=0.85,
        Specular_IOR_Level=0.25,
        Normal=nodes.bump(height, 0.6, 0.0018),
    )
    return material


def _teeth() -> Material:
    material = _new("teeth")
    _principled(material.nodes, Base_Color=(0.55, 0.42, 0.36, 1))
    return material


def _fibre(name: str) -> Material:
    """Diffuse and reflecting lobes, and for hair light that comes through.

    About half the time of Blender's Principled Hair, and hard to tell from it at 256 pixels.
    """
    material = _new(name)
    nodes = material.nodes
    strand = nodes.split(nodes.attribute("aux"))  # region, random of the strand, along it
    body = nodes.mix(strand[1], nodes.colour("a"), nodes.colour("b"))
    body = nodes.mix(nodes.math("MULTIPLY", strand[2], 0.7), body, nodes.colour("tip"))
    diffuse = nodes.add("BsdfDiffuse")
    nodes.plug(diffuse, Color=nodes.mix(1.0, body, (0.74, 0.74, 0.74), "MULTIPLY"))
    gloss = nodes.add("BsdfHair", component="Reflection")
    nodes.plug(gloss, Color=nodes.mix(0.55, body, nodes.colour("gloss")))
    nodes.plug(gloss, RoughnessU=0.22, RoughnessV=1.0, Offset=-0.05)
    shader = nodes.mix_shaders(0.30 if name == "hair" else 0.12, diffuse.outputs[0], gloss.outputs[0])
    nodes.output(_lit_through(nodes, shader, body) if name == "hair" else shader)
    return material


def _lit_through(nodes: Nodes, shader: Socket, body: Socket) -> Socket:
    """Add forward scattering and a glow: matters for light hair, which few bounces leave too dark."""
    through = nodes.add("BsdfHair", component="Transmission")
    nodes.plug(through, Color=body, RoughnessU=0.5, RoughnessV=1.0)
    mixed = nodes.mix_shaders(nodes.value("through"), shader, through.outputs[0])
    glow = nodes.add("Emission")
    nodes.plug(glow, Color=body, Strength=nodes.value("glow"))
    total = nodes.add("AddShader")
    nodes.put(total.inputs[0], mixed)
    nodes.put(total.inputs[1], glow.outputs[0])
    return total.outputs[0]
