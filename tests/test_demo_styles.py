"""The drawn test pictures: the same every time, of the sizes that are promised, and of seven styles that differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from realchar.images import prepare
from tools.demo_base.styles.__main__ import STYLES, main
from tools.demo_base.styles.canvas import Canvas, Dots, Fade, curve, ellipse

SIZES = {
    "flat": (256, 320),
    "lineart": (256, 320),
    "screentone": (256, 320),
    "chibi": (256, 384),
    "painterly": (768, 1024),
    "pixel": (256, 320),
    "cartoon_hat": (384, 256),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("styles") / "new"
    main(["--out", str(out)])
    return out


@pytest.fixture(scope="module")
def pixels(folder: Path) -> dict[str, npt.NDArray[np.int16]]:
    found = {}
    for path in folder.iterdir():
        with Image.open(path) as image:
            assert image.format == "PNG" and image.mode == "RGB"
            found[path.stem] = np.asarray(image).astype(np.int16)
    return found


def colors(picture: npt.NDArray[np.int16]) -> int:
    return len(np.unique(picture.reshape(-1, 3), axis=0))


def edges(picture: npt.NDArray[np.int16]) -> float:
    """Share of pixels that differ a lot from their right neighbour."""
    return float((np.abs(np.diff(picture, axis=1)).max(-1) > 60).mean())


def is_gray(picture: npt.NDArray[np.int16]) -> bool:
    return bool((np.ptp(picture, axis=2) <= 8).all())


def test_sizes(pixels: dict[str, npt.NDArray[np.int16]]) -> None:
    assert {name: (picture.shape[1], picture.shape[0]) for name, picture in pixels.items()} == SIZES


@pytest.mark.parametrize("name", [name for name in SIZES if name != "painterly"])
def test_a_second_drawing_has_the_same_pixels(name: str, pixels: dict[str, npt.NDArray[np.int16]]) -> None:
    assert np.array_equal(np.asarray(STYLES[name]()), pixels[name])


@pytest.mark.slow
def test_so_has_the_painting(pixels: dict[str, npt.NDArray[np.int16]]) -> None:
    assert np.array_equal(np.asarray(STYLES["painterly"]()), pixels["painterly"])


def test_styles_are_what_they_are_called(pixels: dict[str, npt.NDArray[np.int16]]) -> None:
    assert {name for name, picture in pixels.items() if is_gray(picture)} == {"lineart", "screentone"}
    white = {name: float((picture.min(-1) >= 250).mean()) for name, picture in pixels.items()}
    assert white["lineart"] > 0.7 and 0.15 < white["screentone"] < 0.5
    assert float((pixels["screentone"].max(-1) < 40).mean()) > 0.3
    assert colors(pixels["pixel"]) < 32 and colors(pixels["painterly"]) > 20_000
    assert 400 < colors(pixels["flat"]) < 20_000
    density = {name: edges(picture) for name, picture in pixels.items()}
    assert density["screentone"] == max(density.values()) > 0.2
    assert density["painterly"] == min(density.values()) < 0.02


def test_fat_pixels_are_of_one_color(pixels: dict[str, npt.NDArray[np.int16]]) -> None:
    small = pixels["pixel"][::8, ::8]
    assert np.array_equal(small.repeat(8, axis=0).repeat(8, axis=1), pixels["pixel"])


@pytest.mark.parametrize("name", ["flat", "chibi", "cartoon_hat"])
def test_faces_have_two_eyes_of_equal_height(name: str, pixels: dict[str, npt.NDArray[np.int16]]) -> None:
    """Where the eyes are, left and right half are dark and bright in much the same rows."""
    picture = pixels[name]
    height, width = picture.shape[:2]
    band = picture[int(0.4 * height) : int(0.62 * height)].mean(-1)
    left, right = band[:, : width // 2], band[:, ::-1][:, : width // 2]
    rows = [half[:, width // 4 : width // 2 - 8].std(axis=1) for half in (left, right)]
    assert np.corrcoef(rows[0], rows[1])[0, 1] > 0.6


def test_all_can_be_converted(folder: Path) -> None:
    for path in folder.iterdir():
        assert prepare(path).report["action"] == "accept"


def test_canvas_paints_inside_shapes_only() -> None:
    canvas = Canvas(40, 40)
    with canvas.inside(ellipse(20, 20, 10)):
        canvas.fill([(0, 0), (40, 0), (40, 40), (0, 40)], Fade((255, 0, 0), (0, 0, 255)))
    canvas.line([(-50, -50), (-40, -40)], (0, 0, 0), 3)
    picture = np.asarray(canvas.finish()).astype(int)
    assert (picture[:8] == 255).all() and (picture[:, :8] == 255).all()
    assert picture[12, 20, 0] > picture[28, 20, 0] and picture[12, 20, 2] < picture[28, 20, 2]


def test_canvas_dots_cover_the_share_that_is_asked() -> None:
    for share in (0.1, 0.5, 0.9):
        canvas = Canvas(120, 120)
        canvas.fill([(0, 0), (120, 0), (120, 120), (0, 120)], Dots(share, share))
        black = 1 - float(np.asarray(canvas.finish()).mean()) / 255
        assert abs(black - share) < 0.12


def test_curve_goes_through_its_points_and_keeps_corners() -> None:
    points = [(0.0, 0.0), (10.0, 20.0), (10.0, 20.0), (30.0, 0.0)]
    line = curve(points)
    assert all(min(abs(x - a) + abs(y - b) for a, b in line) < 1e-9 for x, y in points)
    assert max(y for _, y in line) <= 20.0 + 1e-9
