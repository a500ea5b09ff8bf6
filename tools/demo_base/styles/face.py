"""The anime face that three styles share: head, eyes, brows, nose and mouth around x = 128, in a drawing 256 wide."""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo_base.styles.canvas import Canvas, Color, Paint, Point, curve, ellipse, mirror

AXIS = 128.0
EYE_X, EYE_Y = 30.0, 163.0

_HALF_FACE: list[Point] = [(128, 80), (168, 92), (183, 128), (181, 160), (171, 187), (151, 207), (128, 218)]
FACE = curve([*_HALF_FACE, *mirror(_HALF_FACE[-2:0:-1], AXIS)], closed=True)


@dataclass(frozen=True)
class Look:
    """Paints of a character. Where `white` is the only paint, what remains is a line drawing."""

    ink: Color
    skin: Paint
    shade: Paint
    hair: Paint
    hair_shade: Paint
    hair_light: Paint
    iris: Paint
    iris_light: Paint
    pupil: Paint
    lips: Color
    blush: Color | None = None
    white: Color = (255, 255, 255)
    line: float = 1.7
    eye_height: float = 1.0  # 1 for a girl's round eyes, less for narrow ones


def draw_neck(canvas: Canvas, look: Look) -> None:
    neck = curve([(111, 190), (112, 228), (100, 246), (100, 246), (156, 246), (156, 246), (144, 228), (145, 190)], True)
    canvas.shape(neck, look.skin, look.ink, look.line)
    with canvas.inside(neck):
        canvas.fill(curve([(100, 190), (156, 190), (150, 222), (128, 236), (108, 224)], True), look.shade)


def draw_head(canvas: Canvas, look: Look) -> None:
    for side in (-1, 1):
        ear = curve([(AXIS + side * x, y) for x, y in ((52, 146), (61, 142), (64, 156), (57, 174), (51, 176))], True)
        canvas.shape(ear, look.skin, look.ink, look.line)
        canvas.line(curve([(AXIS + side * x, y) for x, y in ((60, 150), (56, 158), (57, 166))]), look.ink, 1.0, 0.4)
    canvas.shape(FACE, look.skin, look.ink, look.line)
    with canvas.inside(FACE):
        canvas.fill(
            curve([(60, 90), (196, 90), (190, 142), (160, 134), (128, 142), (96, 134), (66, 142)], True), look.shade
        )
        for side in (-1, 1) if look.blush else ():
            canvas.fill(ellipse(AXIS + side * 39, 187, 12, 7), look.blush or look.lips, soft=4, opacity=0.6)


def draw_eyes(canvas: Canvas, look: Look) -> None:
    for side in (-1, 1):
        _draw_eye(canvas, look, side)


def _draw_eye(canvas: Canvas, look: Look, side: int) -> None:
    """`side` is 1 for the eye at the right of the picture; the light comes from the left on both."""
    x, y, tall = AXIS + side * EYE_X, EYE_Y, look.eye_height

    def at(*points: Point) -> list[Point]:
        return [(x + side * u, y + v * tall) for u, v in points]

    opening = curve(at((-15, 3), (-9, -12), (2, -16), (12, -11), (17, 1), (12, 13), (1, 17), (-10, 13)), closed=True)
    canvas.fill(opening, look.white)
    with canvas.inside(opening):
        _draw_iris(canvas, look, x - side * 1.5, y, tall)
        canvas.fill(curve(at((-20, -20), (20, -20), (20, -6), (2, -11), (-16, -3)), True), look.ink, 1.0, 0.32)
    upper = curve(at((-17, 3), (-10, -12), (2, -17), (13, -12), (20, 0)))
    canvas.line(upper, look.ink, 4.2, taper=0.45)
    for lash in (((12, -12), (18, -13), (23, -19)), ((16, -7), (22, -7), (27, -11)), ((18, -2), (23, -1), (27, -3))):
        canvas.line(curve(at(*lash)), look.ink, 2.0, taper=0.6)
    canvas.line(curve(at((-8, 15.5), (2, 18), (12, 14), (16, 7))), look.ink, 1.5, taper=0.5)
    canvas.line(curve(at((-11, -19), (2, -24), (14, -18))), look.ink, 1.1, taper=0.5)
    brow = [(x + side * u, y + v) for u, v in ((-16, -33), (0, -39), (18, -34))]
    canvas.line(curve(brow), look.ink, 2.8, taper=0.7)


def _draw_iris(canvas: Canvas, look: Look, x: float, y: float, tall: float) -> None:
    iris = ellipse(x, y + 1, 11.5, 16 * tall)
    canvas.shape(iris, look.iris, look.ink, 1.8)
    with canvas.inside(iris):
        canvas.fill(ellipse(x, y + 13 * tall, 9, 8 * tall), look.iris_light, soft=1.0)
    canvas.fill(ellipse(x, y, 4.8, 7.5 * tall), look.pupil)
    canvas.fill(ellipse(x - 4.5, y - 7 * tall, 4.0, 5.0 * tall, -20), look.white)
    canvas.fill(ellipse(x + 4.5, y + 8 * tall, 2.0, 2.4 * tall), look.white)


def draw_nose_and_mouth(canvas: Canvas, look: Look, open_mouth: bool = True) -> None:
    canvas.line(curve([(127, 181), (125, 186), (128, 187.5)]), look.ink, 1.4, taper=0.5)
    if open_mouth:
        mouth = curve(
            [(116, 196), (116, 196), (128, 198), (140, 196), (140, 196), (135, 205), (128, 207), (121, 205)], True
        )
        canvas.fill(mouth, look.lips)
        with canvas.inside(mouth):
            canvas.fill(ellipse(128, 209, 9, 5), look.shade)
            canvas.fill(curve([(114, 195), (142, 195), (138, 199), (128, 200), (118, 199)], True), look.white)
        canvas.line([*mouth, mouth[0]], look.ink, 1.2)
    else:
        canvas.line(curve([(115, 199), (122, 202), (128, 201), (134, 202), (141, 199)]), look.ink, 1.9, taper=0.5)
        canvas.line(curve([(122, 207), (128, 208.5), (134, 207)]), look.ink, 1.0, taper=0.5)
