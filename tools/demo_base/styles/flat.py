"""A schoolgirl in flat colours with outlines: apricot hair in two tails, green eyes, a sailor collar."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from tools.demo_base.styles.canvas import Canvas, Fade, Point, curve, ellipse, lock, mirror
from tools.demo_base.styles.face import AXIS, Look, draw_eyes, draw_head, draw_neck, draw_nose_and_mouth

GIRL = Look(
    ink=(52, 40, 62),
    skin=(255, 229, 212),
    shade=(243, 192, 178),
    hair=(250, 168, 104),
    hair_shade=(222, 118, 84),
    hair_light=(255, 222, 168),
    iris=Fade((16, 84, 84), (52, 190, 150)),
    iris_light=(176, 244, 190),
    pupil=(14, 44, 56),
    lips=(198, 82, 90),
    blush=(250, 140, 140),
)
NAVY, NAVY_DARK, RED, RED_DARK = (58, 72, 124), (40, 50, 94), (226, 72, 84), (170, 42, 66)
CREAM, CREAM_SHADE = (252, 250, 246), (214, 216, 232)


def draw_flat() -> Image.Image:
    canvas = Canvas(256, 320)
    _draw_background(canvas)
    for side in (-1, 1):
        _draw_tail(canvas, side)
    cap = curve(
        [(128, 50), (176, 62), (200, 108), (194, 170), (160, 206), (96, 206), (62, 170), (56, 108), (80, 62)], True
    )
    canvas.shape(cap, GIRL.hair_shade, GIRL.ink, GIRL.line)
    _draw_uniform(canvas)
    draw_neck(canvas, GIRL)
    _draw_collar(canvas)
    draw_head(canvas, GIRL)
    draw_nose_and_mouth(canvas, GIRL)
    draw_eyes(canvas, GIRL)
    _draw_hair(canvas)
    return canvas.finish()


def _draw_background(canvas: Canvas) -> None:
    canvas.fill([(0, 0), (256, 0), (256, 320), (0, 320)], Fade((206, 232, 255), (196, 206, 250)))
    canvas.fill(ellipse(128, 150, 118), (238, 248, 255))
    for x, y, r in ((28, 40, 9), (226, 30, 12), (238, 96, 6), (16, 110, 6), (40, 262, 7), (222, 250, 9), (70, 18, 5)):
        star: list[Point] = []
        for point in (0, 72, 144, 216, 288):
            star += [ellipse(x, y, r)[(point - 90) % 360 // 5], ellipse(x, y, r * 0.45)[(point - 54) % 360 // 5]]
        canvas.fill(star, (255, 236, 150))


def _draw_tail(canvas: Canvas, side: int) -> None:
    def at(points: Sequence[Point]) -> list[Point]:
        return list(points) if side > 0 else mirror(points, AXIS)

    outer: list[Point] = [
        (186, 84),
        (226, 92),
        (246, 150),
        (238, 220),
        (248, 290),
        (248, 290),
        (230, 270),
        (214, 304),
        (214, 304),
    ]
    tail = curve(at([*outer, (204, 262), (206, 200), (202, 140)]), closed=True)
    canvas.shape(tail, GIRL.hair, GIRL.ink, GIRL.line)
    with canvas.inside(tail):
        canvas.fill(
            curve(at([(196, 84), (206, 130), (216, 200), (208, 310), (190, 310), (180, 90)]), True), GIRL.hair_shade
        )
        canvas.line(curve(at([(224, 112), (234, 150), (232, 186)])), GIRL.hair_light, 5, taper=0.6)
    for strand in ([(206, 98), (224, 150), (220, 220), (228, 268)], [(214, 96), (236, 160), (232, 230)]):
        canvas.line(curve(at(strand)), GIRL.ink, 1.2, taper=0.6)
    for bow in ([(190, 86), (186, 62), (204, 58), (200, 84)], [(196, 88), (216, 74), (224, 92), (202, 98)]):
        canvas.shape(curve(at(bow), True), RED, GIRL.ink, GIRL.line)
    canvas.shape(ellipse(AXIS + side * 68, 88, 7), RED_DARK, GIRL.ink, GIRL.line)


def _draw_uniform(canvas: Canvas) -> None:
    half: list[Point] = [(128, 238), (154, 240), (196, 256), (220, 288), (226, 330), (128, 330)]
    body = curve([*half[:1], *half[1:5], (226, 330), (30, 330), (30, 330), *mirror(half[4:0:-1], AXIS)], closed=True)
    canvas.shape(body, CREAM, GIRL.ink, GIRL.line)
    with canvas.inside(body):
        for side in (-1, 1):
            fold = [(AXIS + side * x, y) for x, y in ((74, 290), (66, 300), (60, 330), (70, 330))]
            canvas.fill(curve(fold, True), CREAM_SHADE)
        canvas.fill(curve([(90, 250), (166, 250), (176, 296), (128, 312), (80, 296)], True), CREAM_SHADE)


def _draw_collar(canvas: Canvas) -> None:
    for side in (-1, 1):
        flap: list[Point] = [(128, 292), (106, 238), (92, 240), (64, 252), (62, 274), (96, 284)]
        points = flap if side < 0 else mirror(flap, AXIS)
        canvas.shape(points, NAVY, GIRL.ink, GIRL.line)
        stripe: list[Point] = [(120, 287), (98, 279), (68, 270), (69, 255)]
        canvas.line(stripe if side < 0 else mirror(stripe, AXIS), CREAM, 2.2)
        ribbon = curve([(128, 290), (108, 278), (98, 296), (110, 306)], True)
        canvas.shape(ribbon if side < 0 else mirror(ribbon, AXIS), RED, GIRL.ink, GIRL.line)
        end: list[Point] = [(126, 294), (112, 322), (104, 330), (122, 330)]
        canvas.shape(end if side < 0 else mirror(end, AXIS), RED_DARK, GIRL.ink, GIRL.line)
    canvas.shape(ellipse(128, 292, 8, 7), RED, GIRL.ink, GIRL.line)


def _draw_hair(canvas: Canvas) -> None:
    for points in _side_locks():
        canvas.shape(points, GIRL.hair, GIRL.ink, GIRL.line)
    crown = curve(
        [(58, 120), (66, 78), (98, 52), (128, 47), (158, 52), (190, 78), (198, 120), (176, 118), (128, 96), (80, 118)],
        True,
    )
    canvas.shape(crown, GIRL.hair, GIRL.ink, GIRL.line)
    fringe = [
        lock((60, 96), (92, 88), (70, 150), -3),
        lock((164, 88), (196, 96), (186, 150), 3),
        lock((70, 84), (112, 80), (88, 147), -4),
        lock((144, 80), (186, 84), (170, 146), 4),
        lock((132, 72), (168, 76), (149, 145), 3),
        lock((92, 74), (142, 70), (118, 152), -4),
    ]
    for points in fringe:
        canvas.fill(points, GIRL.hair)
        canvas.line(points[4:36], GIRL.ink, 1.6, taper=0.25)
        with canvas.inside(points):
            canvas.line([(x + 3, y) for x, y in points[10:20]], GIRL.hair_shade, 4, taper=0.5)
    canvas.fill(curve([(74, 100), (80, 70), (104, 56), (152, 56), (176, 70), (182, 100), (128, 88)], True), GIRL.hair)
    shine: list[Point] = [
        (78, 96),
        (92, 84),
        (100, 90),
        (112, 80),
        (122, 86),
        (132, 78),
        (144, 86),
        (156, 80),
        (164, 88),
        (178, 96),
    ]
    canvas.fill([*shine, (166, 82), (150, 74), (128, 71), (106, 74), (90, 81)], GIRL.hair_light)
    canvas.line(curve([(128, 48), (124, 60), (126, 72)]), GIRL.ink, 1.3, taper=0.6)


def _side_locks() -> list[list[Point]]:
    left = [lock((58, 104), (80, 100), (70, 236), -6, 0.08), lock((60, 110), (74, 108), (56, 206), -6, 0.08)]
    return [*left, *(mirror(points, AXIS) for points in left)]
