"""A short way to write Blender shader trees: each method adds a node and returns its output socket."""

from __future__ import annotations

from typing import Any

Socket = Any  # bpy.types.NodeSocket; bpy has no types
Input = Any  # a socket to link, or a value


class Nodes:
    """The nodes of one material or world; `named` are the inputs that every character sets anew."""

    def __init__(self, owner: Any) -> None:
        owner.use_nodes = True
        self.tree = owner.node_tree
        self.tree.nodes.clear()
        self.named: dict[str, Socket] = {}

    def add(self, kind: str, **settings: object) -> Any:
        """Add a node, e.g. "Math" for ShaderNodeMath, and set its attributes."""
        node = self.tree.nodes.new(f"ShaderNode{kind}")
        for name, value in settings.items():
            setattr(node, name, value)
        return node

    def plug(self, node: Any, **inputs: Input) -> None:
        """Set a node's inputs by name, with _ for a space, e.g. Base_Color."""
        for name, value in inputs.items():
            self.put(node.inputs[name.replace("_", " ")], value)

    def put(self, socket: Socket, value: Input) -> None:
        if hasattr(value, "is_linked"):
            self.tree.links.new(value, socket)
        else:
            socket.default_value = value

    def math(self, operation: str, *values: Input) -> Socket:
        node = self.add("Math", operation=operation)
        for socket, value in zip(node.inputs, values, strict=False):
            self.put(socket, value)
        return node.outputs[0]

    def mix(self, factor: Input, first: Input, second: Input, blend: str = "MIX") -> Socket:
        """Mix two colours; tuples are linear RGB."""
        node = self.add("Mix", data_type="RGBA", blend_type=blend, clamp_factor=True)
        for index, value in ((0, factor), (6, first), (7, second)):  # the node's colour inputs are 6 and 7
            self.put(node.inputs[index], (*value, 1) if isinstance(value, tuple) else value)
        return node.outputs[2]

    def mix_shaders(self, factor: Input, first: Socket, second: Socket) -> Socket:
        node = self.add("MixShader")
        for socket, value in zip(node.inputs, (factor, first, second), strict=True):
            self.put(socket, value)
        return node.outputs[0]

    def colour(self, name: str) -> Socket:
        """Add a colour that characters set."""
        self.named[name] = self.add("RGB").outputs[0]
        return self.named[name]

    def value(self, name: str) -> Socket:
        """Add a number that characters set."""
        self.named[name] = self.add("Value").outputs[0]
        return self.named[name]

    def attribute(self, name: str, output: str = "Vector") -> Socket:
        return self.add("Attribute", attribute_name=name).outputs[output]

    def split(self, vector: Socket) -> Any:
        node = self.add("SeparateXYZ")
        self.put(node.inputs[0], vector)
        return node.outputs

    def noise(self, vector: Socket, scale: float, detail: float = 2.0, roughness: float = 0.5) -> Socket:
        node = self.add("TexNoise")
        self.plug(node, Scale=scale, Detail=detail, Roughness=roughness, Vector=vector)
        return node.outputs[0]

    def ramp(self, value: Socket, start: float, end: float, low: float = 0.0, high: float = 1.0) -> Socket:
        """Go smoothly from `low` at `start` to `high` at `end`."""
        node = self.add("MapRange", interpolation_type="SMOOTHSTEP")
        for socket, item in zip(node.inputs, (value, start, end, low, high), strict=False):
            self.put(socket, item)
        return node.outputs[0]

    def grey(self, value: Socket) -> Socket:
        node = self.add("CombineXYZ")
        for socket in node.inputs:
            self.put(socket, value)
        return node.outputs[0]

    def bump(self, height: Socket, strength: float, distance: float) -> Socket:
        """Return the normal of a height; distance is in metres."""
        node = self.add("Bump")
        self.plug(node, Strength=strength, Distance=distance, Height=height)
        return node.outputs[0]

    def output(self, shader: Socket, kind: str = "OutputMaterial") -> None:
        self.put(self.add(kind).inputs[0], shader)

    def set_colour(self, name: str, rgb: Any) -> None:
        """Set one of the named colours, linear."""
        self.named[name].default_value = (*(float(value) for value in rgb), 1)

    def set_value(self, name: str, value: float) -> None:
        self.named[name].default_value = value
