"""A woman with auburn hair as a digital painting, 768x1024: gradients and soft edges, no outlines, light from the left."""

from __future__ import annotations

import random
from collections.abc import Sequence

from PIL import Image

from tools.demo_base.styles.canvas import Canvas, Color, Fade, Point, curve, ellipse, mirror

AXIS = 128.0
SKIN, LIT, SHADOW, DEEP = (242, 200, 176), (255, 228, 206), (206, 142, 126), (160, 92, 88)
ROSE, LIP, LIP_DARK = (232, 132, 120), (204, 92, 92), (140, 50, 60)
HAIR_DARK, HAIR_MID, HAIR_LIGHT = (62, 26, 30), (128, 54, 42), (222, 132, 84)
LASH: Color = (48, 24, 28)
TEAL, TEAL_DARK = (52, 122, 122), (22, 62, 72)


def draw_painterly() -> Image.Image:
    # soft edges need no finer grid than twice the picture's own
    canvas, rng = Canvas(768, 1024, scale=3.0, factor=2), random.Random(11)
    _draw_background(canvas, rng)
    _draw_back_hair(canvas, rng)
    _draw_shoulders(canvas)
    _draw_dress(canvas, rng)
    _draw_face(canvas)
    for side in (-1, 1):
        _draw_eye(canvas, side)
    _draw_nose(canvas)
    _draw_mouth(canvas)
    _draw_front_hair(canvas, rng)
    return canvas.finish()


def _strands(
    canvas: Canvas, first: Sequence[Point], last: Sequence[Point], count: int, rng: random.Random, width: float
) -> None:
    """Draw hairs between two guides with as many points; those in the middle catch the light."""
    for i in range(count):
        t = (i + rng.random()) / count
        points = [
            (x0 + (x1 - x0) * t + rng.gauss(0, 0.8), y0 + (y1 - y0) * t + rng.gauss(0, 0.8))
            for (x0, y0), (x1, y1) in zip(first, last, strict=True)
        ]
        (x0, y0), (x1, y1), reach = points[-2], points[-1], rng.uniform(0.45, 1.2)
        points[-1] = (x0 + (x1 - x0) * reach, y0 + (y1 - y0) * reach)
        light = max(0.0, 1 - abs(t - 0.45) * 2.6) * rng.uniform(0.3, 1.0)
        low, high = (HAIR_DARK, HAIR_MID) if rng.random() < 0.45 else (HAIR_MID, HAIR_LIGHT)
        red, green, blue = (round(a + (b - a) * light) for a, b in zip(low, high, strict=True))
        canvas.line(curve(points), (red, green, blue), width * rng.uniform(0.4, 1.2), taper=0.5, opacity=0.7)


def _draw_background(canvas: Canvas, rng: random.Random) -> None:
    canvas.fill([(0, 0), (256, 0), (256, 342), (0, 342)], Fade((48, 84, 110), (116, 76, 98)))
    canvas.fill(ellipse(30, 90, 110, 130), (250, 196, 140), soft=45, opacity=0.75)
    canvas.fill(ellipse(240, 300, 90, 90), (40, 40, 72), soft=40, opacity=0.8)
    for _ in range(150):
        x, y, turn = rng.uniform(0, 256), rng.uniform(0, 342), rng.uniform(-20, 20)
        warm = max(0.0, 1 - ((x - 30) ** 2 + (y - 90) ** 2) ** 0.5 / 200)
        paint = (round(60 + 190 * warm), round(84 + 100 * warm), round(112 + 20 * warm))
        stroke = [(x - 16, y + turn), (x, y + rng.uniform(-4, 4)), (x + 16, y - turn)]
        canvas.line(curve(stroke), paint, rng.uniform(3, 9), taper=0.4, soft=1.0, opacity=0.22)
    for _ in range(26):
        x, y, r = rng.uniform(0, 256), rng.uniform(0, 300), rng.uniform(3, 13)
        canvas.fill(ellipse(x, y, r), (255, 224, 170), soft=0.8, opacity=rng.uniform(0.06, 0.28))


def _draw_back_hair(canvas: Canvas, rng: random.Random) -> None:
    mass = [
        (128, 34),
        (178, 50),
        (204, 104),
        (208, 170),
        (226, 230),
        (214, 290),
        (180, 300),
        (76, 300),
        (42, 290),
        (30, 230),
        (50, 170),
        (52, 104),
        (78, 50),
    ]
    canvas.fill(curve(mass, True), Fade((96, 42, 38), HAIR_DARK), soft=2.0)
    for side in (-1, 1):
        inner = [(AXIS + side * x, y) for x, y in ((8, 44), (46, 84), (56, 150), (48, 214), (56, 300))]
        outer = [(AXIS + side * x, y) for x, y in ((14, 36), (72, 84), (80, 160), (98, 226), (84, 306))]
        _strands(canvas, inner, outer, 110, rng, 2.0)
    canvas.fill(curve([(84, 150), (172, 150), (178, 250), (128, 270), (78, 250)], True), (44, 18, 26), soft=9)


def _draw_shoulders(canvas: Canvas) -> None:
    neck = [
        (108, 188),
        (148, 188),
        (149, 226),
        (164, 242),
        (204, 258),
        (222, 300),
        (226, 350),
        (226, 350),
        (30, 350),
        (30, 350),
        (34, 300),
        (52, 258),
        (92, 242),
        (107, 226),
    ]
    outline = curve(neck, True)
    canvas.fill(outline, Fade(SKIN, LIT, across=False), soft=0.7)
    with canvas.inside(outline):
        canvas.fill(
            curve([(100, 188), (156, 188), (152, 216), (132, 232), (110, 214)], True), DEEP, soft=5, opacity=0.85
        )
        canvas.fill(curve([(136, 200), (156, 200), (160, 244), (140, 262)], True), SHADOW, soft=5, opacity=0.8)
        canvas.fill(curve([(196, 250), (250, 280), (250, 350), (214, 350)], True), SHADOW, soft=10, opacity=0.9)
        canvas.fill(ellipse(58, 276, 26, 14, -28), (255, 240, 222), soft=8, opacity=0.8)
        for side in (-1, 1):
            bone = curve([(AXIS + side * x, y) for x, y in ((7, 262), (28, 256), (58, 260))])
            canvas.line(bone, SHADOW, 4.0, taper=0.5, soft=1.6, opacity=0.8)
            canvas.line([(x, y - 4) for x, y in bone], LIT, 2.6, taper=0.5, soft=1.2, opacity=0.7)
        canvas.fill(ellipse(128, 266, 5, 7), SHADOW, soft=3, opacity=0.7)


def _draw_dress(canvas: Canvas, rng: random.Random) -> None:
    top: list[Point] = [(56, 302), (82, 294), (110, 305), (128, 314), (146, 305), (174, 294), (200, 302)]
    for side in (-1, 1):
        crease = curve([(AXIS + side * x, y) for x, y in ((74, 284), (70, 300), (72, 350))])
        canvas.line(crease, DEEP, 4, taper=0.5, soft=2, opacity=0.7)
    dress = curve([*top, top[-1], (196, 350), (60, 350), top[0]], True)
    canvas.fill(dress, Fade(TEAL, TEAL_DARK, across=True), soft=0.5)
    with canvas.inside(dress):
        for _ in range(60):
            x = rng.uniform(20, 236)
            paint = (96, 172, 164) if rng.random() < max(0.1, 0.7 - x / 256) else TEAL_DARK
            fold = curve([(x, 300), (x + (128 - x) * 0.15, 322), (x + (128 - x) * 0.1, 350)])
            canvas.line(fold, paint, rng.uniform(1, 5), taper=0.5, soft=1.2, opacity=0.5)
    canvas.line([(x, y + 1) for x, y in curve(top)], (214, 190, 128), 2.0, soft=0.4)
    chain = curve([(92, 243), (108, 268), (128, 280), (148, 268), (164, 243)])
    canvas.line(chain, (226, 196, 120), 1.1, soft=0.3)
    canvas.fill(ellipse(128, 285, 4, 6), (40, 150, 140), soft=0.5)
    canvas.fill(ellipse(126.8, 282.5, 1.2, 1.8), (220, 255, 244), soft=0.3)


def _draw_face(canvas: Canvas) -> None:
    half: list[Point] = [(128, 72), (164, 82), (178, 120), (176, 154), (166, 182), (148, 205), (128, 214)]
    face = curve([*half, *mirror(half[-2:0:-1], AXIS)], True)
    canvas.fill(face, SKIN, soft=0.7)
    with canvas.inside(face):
        canvas.fill(curve([(70, 70), (110, 70), (112, 150), (104, 200), (70, 190)], True), LIT, soft=12, opacity=0.9)
        canvas.fill(curve([(160, 76), (190, 76), (190, 200), (140, 224), (160, 184), (166, 140)], True), SHADOW, soft=8)
        canvas.fill(
            curve([(66, 60), (190, 60), (188, 112), (150, 96), (112, 104), (70, 126)], True), DEEP, soft=8, opacity=0.65
        )
        canvas.fill(
            curve([(100, 204), (128, 210), (160, 196), (160, 226), (100, 226)], True), SHADOW, soft=4, opacity=0.7
        )
        for side, strength in ((-1, 0.55), (1, 0.6)):
            canvas.fill(ellipse(AXIS + side * 32, 174, 15, 10, side * -18), ROSE, soft=6, opacity=strength)
            canvas.fill(ellipse(AXIS + side * 25, 140, 19, 9), SHADOW, soft=5, opacity=0.65)
        canvas.fill(ellipse(100, 162, 9, 5, 14), (255, 238, 222), soft=4, opacity=0.8)
        canvas.fill(ellipse(126, 205, 8, 4), LIT, soft=3, opacity=0.8)
        canvas.fill(ellipse(120, 112, 16, 10), LIT, soft=7, opacity=0.6)


def _draw_eye(canvas: Canvas, side: int) -> None:
    x, y = AXIS + side * 25, 148.0

    def at(*points: Point) -> list[Point]:
        return [(x + side * u, y + v) for u, v in points]

    opening = curve(at((-14, 4), (-14, 4), (-7, -5), (3, -8), (11, -5), (16, 1), (16, 1), (9, 7), (-2, 9)), True)
    canvas.fill(opening, Fade((206, 186, 184), (250, 242, 236)), soft=0.4)
    with canvas.inside(opening):
        canvas.fill(ellipse(x + 0.5, y, 8.6, 9.4), (34, 62, 52), soft=0.5)
        canvas.fill(ellipse(x + 0.5, y + 1, 7.4, 8.2), Fade((40, 84, 66), (136, 186, 110)), soft=0.5)
        canvas.fill(ellipse(x + 2, y + 5, 5, 3), (196, 222, 140), soft=1.2, opacity=0.8)
        canvas.fill(ellipse(x + 0.5, y, 3.5, 4.0), (16, 22, 22), soft=0.4)
        canvas.fill(curve(at((-18, -12), (20, -12), (20, -3), (3, -4), (-16, 3)), True), LASH, soft=1.4, opacity=0.6)
    canvas.fill(ellipse(x - 3, y - 3.4, 2.3, 2.6), (255, 255, 250), soft=0.3)
    canvas.fill(ellipse(x + 3.4, y + 4, 1.1), (255, 255, 240), soft=0.3, opacity=0.8)
    canvas.line(curve(at((-15, 5), (-7, -5.5), (3, -8.6), (12, -5.5), (19, -0.5))), LASH, 2.6, taper=0.45, soft=0.35)
    for u, v, du, dv in ((6, -8, 3, -4), (10, -6.5, 4.5, -4.5), (13, -4.5, 6, -4), (16, -2, 6.5, -2.5)):
        canvas.line(curve(at((u, v), (u + du * 0.6, v + dv * 0.4), (u + du, v + dv))), LASH, 1.3, taper=0.8, soft=0.25)
    canvas.line(curve(at((-10, 8), (0, 9.6), (10, 7), (15, 3))), DEEP, 1.2, taper=0.6, soft=0.5, opacity=0.8)
    canvas.line(curve(at((-12, -5), (-4, -12), (6, -13.5), (15, -9))), DEEP, 1.3, taper=0.6, soft=0.6, opacity=0.8)
    for i in range(16):
        t = i / 15
        left, up = -14 + 32 * t, -20 - 7 * t + 9 * t * t
        canvas.line(
            at((left - 2, up + 2.4), (left + 4, up - 1.4 + t)),
            (86, 40, 36),
            1.9 - 1.1 * t,
            taper=0.6,
            soft=0.4,
            opacity=0.75,
        )


def _draw_nose(canvas: Canvas) -> None:
    canvas.fill(
        curve([(131, 146), (136, 160), (137, 178), (130, 180), (129, 160)], True), SHADOW, soft=2.6, opacity=0.75
    )
    canvas.line(curve([(126, 140), (126, 158), (127, 171)]), (255, 240, 226), 3.4, taper=0.5, soft=1.6, opacity=0.9)
    canvas.fill(ellipse(127, 174, 3.2, 2.6), (255, 244, 234), soft=1.2, opacity=0.9)
    canvas.fill(
        curve([(119, 179), (128, 183), (137, 179), (133, 185), (123, 185)], True), SHADOW, soft=1.5, opacity=0.9
    )
    for side in (-1, 1):
        canvas.fill(ellipse(AXIS + side * 4.6, 180, 2.0, 1.1, side * -18), DEEP, soft=0.6)


def _draw_mouth(canvas: Canvas) -> None:
    upper = curve(
        [(113, 193), (113, 193), (123, 189), (128, 190.5), (133, 189), (143, 193), (143, 193), (128, 195)], True
    )
    lower = curve(
        [(113, 193), (113, 193), (128, 195), (143, 193), (143, 193), (136, 199), (128, 201), (120, 199)], True
    )
    canvas.fill(lower, LIP, soft=0.7)
    canvas.fill(upper, (178, 70, 76), soft=0.6)
    canvas.line(
        curve([(112, 192.6), (122, 194), (128, 194.6), (134, 194), (144, 192.6)]), LIP_DARK, 1.4, taper=0.4, soft=0.35
    )
    canvas.fill(ellipse(125, 197.4, 5, 1.3), (255, 190, 180), soft=0.8, opacity=0.85)
    canvas.fill(ellipse(128, 204, 9, 1.8), SHADOW, soft=1.6, opacity=0.8)


def _draw_front_hair(canvas: Canvas, rng: random.Random) -> None:
    sweeps: tuple[tuple[list[Point], list[Point], int], ...] = (
        (
            [(118, 40), (92, 62), (76, 100), (72, 150), (52, 222)],
            [(116, 66), (104, 78), (88, 106), (80, 146), (72, 238)],
            90,
        ),
        (
            [(116, 38), (76, 54), (54, 104), (50, 166), (30, 262)],
            [(118, 46), (88, 66), (72, 110), (66, 160), (52, 270)],
            80,
        ),
        (
            [(116, 40), (152, 46), (178, 80), (186, 140), (206, 226)],
            [(114, 68), (142, 80), (166, 104), (176, 146), (186, 240)],
            100,
        ),
        (
            [(118, 36), (168, 46), (198, 96), (204, 160), (226, 262)],
            [(118, 46), (160, 58), (186, 100), (190, 160), (206, 270)],
            80,
        ),
    )
    for first, last, count in sweeps:
        canvas.fill([*curve(first)[:-18], *curve(last)[-8::-1]], HAIR_MID, soft=2.5)
        _strands(canvas, first, last, count, rng, 2.0)
    for points in ([(114, 64), (100, 84), (88, 118), (90, 140)], [(116, 66), (146, 84), (164, 116), (166, 142)]):
        canvas.line(curve(points), HAIR_DARK, 1.2, taper=0.7, soft=0.3)
    canvas.line(curve([(76, 84), (92, 66), (108, 58)]), (250, 186, 130), 7, taper=0.6, soft=3, opacity=0.5)
    canvas.line(curve([(136, 58), (158, 70), (172, 92)]), (214, 120, 80), 6, taper=0.6, soft=3, opacity=0.4)
