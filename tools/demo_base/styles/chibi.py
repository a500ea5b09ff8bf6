"""A chibi witch's cat-eared apprentice, whole body: head as large as the rest of her, on a meadow at dusk."""

from __future__ import annotations

from PIL import Image

from tools.demo_base.styles.canvas import Canvas, Color, Fade, Paint, Point, curve, ellipse, lock, mirror

AXIS = 128.0
INK: Color = (78, 44, 62)
SKIN, SKIN_SHADE = (255, 232, 218), (248, 198, 186)
HAIR, HAIR_SHADE, HAIR_LIGHT = (170, 132, 226), (128, 92, 190), (222, 200, 252)
DRESS, DRESS_SHADE, APRON = (92, 96, 176), (66, 66, 138), (255, 250, 244)
GOLD, PINK, BOOT = (255, 206, 96), (255, 150, 170), (128, 76, 62)
WIDTH = 2.6


def draw_chibi() -> Image.Image:
    canvas = Canvas(256, 384)
    _draw_meadow(canvas)
    canvas.fill(ellipse(128, 362, 62, 9), (70, 120, 92), soft=3, opacity=0.7)
    tail = curve(
        [(150, 318), (190, 330), (214, 306), (206, 276), (212, 268), (222, 276), (230, 308), (206, 342), (160, 340)],
        True,
    )
    canvas.shape(tail, HAIR, INK, WIDTH)
    back = curve(
        [
            (128, 36),
            (196, 56),
            (226, 116),
            (220, 190),
            (200, 238),
            (128, 250),
            (56, 238),
            (36, 190),
            (30, 116),
            (60, 56),
        ],
        True,
    )
    canvas.shape(back, HAIR_SHADE, INK, WIDTH)
    _draw_body(canvas)
    for side in (-1, 1):
        _draw_ear(canvas, side)
    _draw_head(canvas)
    for side in (-1, 1):
        _draw_eye(canvas, side)
    _draw_hair(canvas)
    return canvas.finish()


def _both(points: list[Point], side: int) -> list[Point]:
    """Return points that are given for the right side of the picture on either side."""
    return points if side > 0 else mirror(points, AXIS)


def _draw_meadow(canvas: Canvas) -> None:
    canvas.fill([(0, 0), (256, 0), (256, 384), (0, 384)], Fade((146, 178, 244), (255, 214, 196)))
    canvas.fill(ellipse(206, 62, 30), (255, 246, 210), opacity=0.9)
    for x, y, r in ((30, 96, 16), (48, 90, 20), (70, 98, 14), (214, 178, 15), (232, 172, 19), (252, 180, 14)):
        canvas.fill(ellipse(x, y, r * 1.3, r * 0.8), (255, 255, 255), opacity=0.85)
    canvas.fill(curve([(-20, 320), (60, 296), (140, 312), (276, 288), (276, 400), (-20, 400)], True), (150, 208, 140))
    canvas.fill(curve([(-20, 352), (80, 330), (180, 342), (276, 326), (276, 400), (-20, 400)], True), (116, 184, 122))
    for x, y, paint in (
        (24, 350, PINK),
        (52, 368, GOLD),
        (226, 352, PINK),
        (204, 372, (255, 255, 255)),
        (246, 330, GOLD),
        (14, 322, (255, 255, 255)),
    ):
        for dx, dy in ((-3, 0), (3, 0), (0, -3), (0, 3)):
            canvas.fill(ellipse(x + dx, y + dy, 2.6), paint)
        canvas.fill(ellipse(x, y, 1.8), (250, 170, 60))


def _draw_body(canvas: Canvas) -> None:
    for side in (-1, 1):
        leg = _both([(134, 318), (152, 318), (151, 346), (135, 346)], side)
        canvas.shape(leg, SKIN, INK, WIDTH)
        boot = curve(_both([(132, 340), (154, 340), (155, 352), (162, 360), (158, 368), (132, 368)], side), True)
        canvas.shape(boot, BOOT, INK, WIDTH)
        arm = curve(_both([(148, 250), (162, 252), (186, 286), (180, 298), (168, 294), (146, 270)], side), True)
        canvas.shape(ellipse(AXIS + side * 53, 297, 8.5), SKIN, INK, WIDTH)
        canvas.shape(arm, DRESS, INK, WIDTH)
        cuff = [(AXIS + side * x, y) for x, y in ((43.0, 291.0), (57.0, 283.0))]
        canvas.line(cuff, INK, 7.6)
        canvas.line(cuff, APRON, 4.4)
    dress = curve(
        [(112, 240), (144, 240), (152, 272), (180, 326), (156, 332), (128, 328), (100, 332), (76, 326), (104, 272)],
        True,
    )
    canvas.shape(dress, DRESS, INK, WIDTH)
    with canvas.inside(dress):
        canvas.fill(
            curve([(70, 316), (100, 322), (128, 318), (156, 322), (186, 316), (186, 340), (70, 340)], True), DRESS_SHADE
        )
        apron = curve([(116, 262), (140, 262), (154, 306), (142, 316), (128, 312), (114, 316), (102, 306)], True)
        canvas.shape(apron, APRON, INK, 1.6)
        canvas.fill(ellipse(128, 250, 40, 9), DRESS_SHADE)
    for side in (-1, 1):
        canvas.shape(curve(_both([(128, 258), (146, 246), (150, 268)], side), True), GOLD, INK, 2.0)
    canvas.shape(ellipse(128, 258, 5), PINK, INK, 2.0)


def _draw_ear(canvas: Canvas, side: int) -> None:
    outer: list[Point] = [(150, 60), (176, 30), (208, 12), (208, 12), (216, 58), (208, 96)]
    inner: list[Point] = [(172, 60), (188, 40), (202, 28), (202, 28), (206, 58), (200, 84)]
    canvas.shape(curve(_both(outer, side), True), HAIR, INK, WIDTH)
    canvas.fill(curve(_both(inner, side), True), (255, 196, 206))


def _draw_head(canvas: Canvas) -> None:
    half: list[Point] = [(128, 70), (190, 90), (208, 150), (204, 186), (180, 222), (128, 240)]
    head = curve([*half, *mirror(half[-2:0:-1], AXIS)], True)
    canvas.shape(head, SKIN, INK, WIDTH)
    with canvas.inside(head):
        canvas.fill(
            curve([(30, 60), (226, 60), (216, 160), (180, 140), (128, 150), (76, 140), (40, 160)], True), SKIN_SHADE
        )
    for side in (-1, 1):
        canvas.fill(ellipse(AXIS + side * 58, 207, 15, 8), PINK, soft=3, opacity=0.75)
        for dx in (-5, 1):
            canvas.line([(AXIS + side * 58 + dx, 210), (AXIS + side * 58 + dx + 4, 203)], (236, 110, 136), 1.4)
    mouth = curve(
        [(116, 211), (122, 215), (128, 211), (128, 211), (134, 215), (140, 211), (140, 211), (128, 226)], True
    )
    canvas.shape(mouth, (214, 84, 104), INK, 1.8)
    canvas.shape([(134.0, 213.5), (138.5, 212.5), (137.0, 218.0)], APRON, None)
    canvas.fill(ellipse(128, 204, 2.2, 1.4), (226, 130, 130))


def _draw_eye(canvas: Canvas, side: int) -> None:
    x, y = AXIS + side * 40, 180.0
    whole = ellipse(x, y, 20, 26)
    canvas.fill(whole, (255, 255, 255))
    iris: Paint = Fade((58, 36, 104), (240, 132, 186))
    with canvas.inside(whole):
        canvas.fill(ellipse(x - side, y + 1, 18, 25), iris)
        canvas.fill(ellipse(x - side, y + 17, 14, 11), (255, 196, 214), soft=2)
        canvas.fill(ellipse(x - side, y - 2, 7, 11), (42, 22, 66))
        canvas.fill(ellipse(x, y - 30, 28, 17), INK, opacity=0.5)
    canvas.fill(ellipse(x - 8, y - 11, 6.5, 8.5, -18), (255, 255, 255))
    canvas.fill(ellipse(x + 8, y + 11, 3.4, 4.2), (255, 255, 255))
    canvas.fill(ellipse(x + 9, y - 4, 1.8), (255, 255, 255))
    lid = curve(
        [
            (x - side * 22, y - 2),
            (x - side * 14, y - 22),
            (x + side * 2, y - 27),
            (x + side * 17, y - 20),
            (x + side * 24, y - 2),
        ]
    )
    canvas.line(lid, INK, 5.4, taper=0.4)
    for dx, dy, ex, ey in ((18, -18, 28, -25), (22, -10, 32, -14)):
        canvas.line([(x + side * dx, y + dy), (x + side * ex, y + ey)], INK, 3.0, taper=0.8)
    canvas.line(curve([(x - side * 10, y + 25), (x, y + 27), (x + side * 12, y + 24)]), INK, 1.8, taper=0.5)
    canvas.line(curve([(x - side * 12, y - 40), (x + side * 2, y - 44), (x + side * 14, y - 39)]), INK, 3.0, taper=0.7)


def _draw_hair(canvas: Canvas) -> None:
    locks = [lock((36, 120), (68, 110), (52, 232), -8, 0.1), lock((38, 100), (92, 84), (66, 168), -8)]
    locks += [mirror(points, AXIS) for points in locks]
    locks += [
        lock((76, 84), (130, 72), (96, 152), -8),
        lock((140, 74), (184, 86), (170, 152), 6),
        lock((106, 74), (156, 74), (134, 160), 4),
    ]
    for points in locks:
        canvas.shape(points, HAIR, INK, 2.0)
        with canvas.inside(points):
            canvas.line([(x + 5, y) for x, y in points[12:21]], HAIR_SHADE, 7, taper=0.5)
    crown = curve(
        [(38, 122), (44, 84), (78, 50), (128, 38), (178, 50), (212, 84), (218, 122), (184, 106), (128, 100), (72, 106)],
        True,
    )
    canvas.fill(crown, HAIR)
    canvas.line(curve([(32, 126), (44, 84), (78, 50), (128, 38), (178, 50), (212, 84), (224, 126)]), INK, WIDTH)
    shine: list[Point] = [
        (62, 100),
        (76, 84),
        (88, 92),
        (102, 78),
        (114, 88),
        (128, 76),
        (142, 88),
        (154, 78),
        (168, 92),
        (180, 84),
        (194, 100),
    ]
    canvas.fill([*shine, (182, 76), (158, 64), (128, 60), (98, 64), (74, 76)], HAIR_LIGHT)
    canvas.shape(curve([(58, 70), (72, 58), (82, 72), (74, 88), (60, 84)], True), GOLD, INK, 2.0)
    for turn in (0, 60, 120):
        canvas.line([(70 - 1, 74 - 1), ellipse(70, 74, 9)[turn // 5]], (226, 150, 40), 1.2)
