"""A tousled boy with a plaster on his cheek in black lines on white: no fills but the pupils, shade by hatching."""

from __future__ import annotations

from PIL import Image

from tools.demo_base.styles.canvas import Canvas, Color, Point, curve, ellipse, lock, mirror
from tools.demo_base.styles.face import AXIS, Look, draw_eyes, draw_head, draw_neck, draw_nose_and_mouth

WHITE: Color = (255, 255, 255)
INK: Color = (14, 14, 18)
BOY = Look(
    ink=INK,
    skin=WHITE,
    shade=WHITE,
    hair=WHITE,
    hair_shade=WHITE,
    hair_light=WHITE,
    iris=WHITE,
    iris_light=WHITE,
    pupil=INK,
    lips=WHITE,
    line=1.5,
    eye_height=0.78,
)
# roots and tip of each spike, from the back of the head to the front
CROWN: list[tuple[Point, Point, Point, float]] = [
    ((84, 194), (66, 130), (34, 176), -4),
    ((58, 132), (84, 72), (22, 106), -2),
    ((190, 130), (172, 194), (222, 176), 4),
    ((186, 108), (196, 168), (232, 154), 4),
    ((174, 68), (200, 132), (234, 96), 4),
    ((66, 104), (116, 58), (42, 50), -4),
    ((148, 54), (194, 104), (214, 46), 8),
    ((84, 78), (142, 54), (88, 14), -8),
    ((112, 62), (176, 74), (160, 10), 6),
]
FRINGE: list[tuple[Point, Point, Point, float]] = [
    ((62, 96), (88, 82), (66, 166), -4),
    ((166, 84), (194, 98), (190, 168), 4),
    ((72, 84), (106, 72), (80, 150), -6),
    ((150, 72), (184, 84), (176, 150), 5),
    ((92, 74), (132, 66), (98, 148), -8),
    ((128, 66), (168, 76), (160, 152), 7),
    ((106, 68), (152, 66), (132, 156), 6),
]


def draw_lineart() -> Image.Image:
    canvas = Canvas(256, 320)
    for left, right, tip, bend in CROWN:
        _draw_lock(canvas, lock(left, right, tip, bend, 0.10))
    canvas.fill(
        curve([(60, 160), (62, 96), (94, 62), (128, 52), (162, 62), (194, 96), (196, 160), (128, 220)], True), WHITE
    )
    _draw_jacket(canvas)
    draw_neck(canvas, BOY)
    _draw_hood(canvas)
    draw_head(canvas, BOY)
    draw_nose_and_mouth(canvas, BOY, open_mouth=False)
    draw_eyes(canvas, BOY)
    for side in (-1, 1):
        _hatch(canvas, ellipse(AXIS + side * 36, 188, 9, 3.2), 4.2)
        _hatch(canvas, ellipse(AXIS + side * 28.5, 155, 9, 7), 2.2)
    _draw_plaster(canvas)
    _hatch(canvas, curve([(112, 222), (128, 220), (145, 212), (144, 232), (126, 240)], True), 2.8)
    for left, right, tip, bend in FRINGE:
        _draw_lock(canvas, lock(left, right, tip, bend, 0.14))
    canvas.fill(curve([(72, 98), (84, 70), (110, 56), (146, 56), (172, 70), (184, 98), (128, 84)], True), WHITE)
    _draw_strands(canvas)
    return canvas.finish()


def _draw_lock(canvas: Canvas, points: list[Point]) -> None:
    canvas.fill(points, WHITE)
    canvas.line(points[:21], INK, 2.0, taper=0.5)
    canvas.line(points[19:], INK, 1.5, taper=0.5)


def _draw_strands(canvas: Canvas) -> None:
    for strand in (
        [(124, 60), (110, 78), (104, 112)],
        [(132, 58), (142, 80), (140, 122)],
        [(104, 66), (90, 86), (86, 118)],
        [(152, 66), (166, 88), (168, 120)],
        [(92, 76), (78, 96), (74, 124)],
        [(166, 76), (180, 98), (184, 126)],
        [(116, 62), (118, 88), (126, 124)],
        [(134, 52), (148, 40), (156, 22)],
        [(112, 54), (98, 40), (92, 26)],
        [(168, 70), (192, 62), (206, 52)],
        [(82, 76), (62, 66), (50, 56)],
        [(190, 104), (212, 106), (226, 100)],
        [(66, 112), (44, 114), (32, 108)],
    ):
        canvas.line(curve(strand), INK, 1.0, taper=0.6)


def _hatch(canvas: Canvas, area: list[Point], gap: float) -> None:
    """Fill an area with slanted lines."""
    xs, ys = zip(*area, strict=True)
    rise = max(ys) - min(ys)
    with canvas.inside(area):
        x = min(xs) - rise
        while x < max(xs):
            canvas.line([(x, max(ys)), (x + rise, min(ys))], INK, 0.9)
            x += gap


def _draw_jacket(canvas: Canvas) -> None:
    half: list[Point] = [(154, 238), (190, 252), (222, 272), (236, 330)]
    body = curve([*half, (236, 330), (20, 330), (20, 330), *mirror(half[::-1], AXIS)[1:]], closed=True)
    canvas.shape(body, WHITE, INK, 1.8)
    canvas.line([(128, 262), (128, 324)], INK, 1.5)
    for y in range(266, 324, 6):
        canvas.line([(125.5, y), (130.5, y)], INK, 1.2)
    for side in (-1, 1):
        for fold in (
            [(70, 322), (64, 300), (72, 284)],
            [(86, 324), (84, 308), (88, 296)],
            [(30, 284), (34, 300), (30, 324)],
        ):
            canvas.line(curve([(AXIS + side * x, y) for x, y in fold]), INK, 1.3, taper=0.5)
    _hatch(canvas, curve([(196, 290), (210, 286), (214, 330), (194, 330)], True), 3.4)


def _draw_hood(canvas: Canvas) -> None:
    for side in (-1, 1):
        hood = curve(
            [(AXIS + side * x, y) for x, y in ((0, 264), (16, 250), (24, 224), (44, 232), (56, 252), (30, 272))], True
        )
        canvas.shape(hood, WHITE, INK, 1.7)
        canvas.line(curve([(AXIS + side * x, y) for x, y in ((26, 236), (34, 246), (24, 262))]), INK, 1.2, taper=0.5)
        cord = curve([(AXIS + side * x, y) for x, y in ((10, 264), (14, 282), (11, 300))])
        canvas.line(cord, INK, 3.4)
        canvas.line(cord, WHITE, 1.4)
        canvas.shape(ellipse(AXIS + side * 11, 303, 2.6, 4.4), WHITE, INK, 1.2)


def _draw_plaster(canvas: Canvas) -> None:
    strip = [(78.0, 183.0), (97.0, 193.0), (94.0, 200.0), (75.0, 190.0)]
    canvas.shape(strip, WHITE, INK, 1.3)
    for start, end in (((84, 186.5), (81, 193.0)), ((91, 190.0), (88, 197.0))):
        canvas.line([start, end], INK, 1.0)
    for x, y in ((85.5, 191), (87, 192.5), (87.2, 190.3)):
        canvas.fill(ellipse(x, y, 0.6), INK)
