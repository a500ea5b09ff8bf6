"""A brooding man in grey manga print: black hair with cut highlights, shade as dots, lines of speed behind him."""

from __future__ import annotations

import math

from PIL import Image

from tools.demo_base.styles.canvas import Canvas, Color, Dots, Point, curve, lock, mirror
from tools.demo_base.styles.face import AXIS, EYE_Y, Look, draw_eyes, draw_head, draw_neck, draw_nose_and_mouth

WHITE: Color = (255, 255, 255)
INK: Color = (12, 12, 12)
HERO = Look(
    ink=INK,
    skin=WHITE,
    shade=Dots(0.34, 0.22, 3.0),
    hair=INK,
    hair_shade=INK,
    hair_light=WHITE,
    iris=Dots(0.85, 0.2, 2.4),
    iris_light=WHITE,
    pupil=INK,
    lips=WHITE,
    line=1.7,
    eye_height=0.56,
)


def draw_screentone() -> Image.Image:
    canvas = Canvas(256, 320)
    _draw_burst(canvas)
    back = curve(
        [(128, 40), (182, 56), (206, 108), (204, 180), (216, 274), (216, 274), (190, 270), (170, 290), (170, 290),
         (86, 290), (86, 290), (66, 270), (40, 274), (40, 274), (52, 180), (50, 108), (74, 56)], True)  # fmt: skip
    canvas.fill(back, INK)
    _draw_coat(canvas)
    draw_neck(canvas, HERO)
    _draw_collar(canvas)
    draw_head(canvas, HERO)
    jaw = curve([(156, 150), (186, 130), (184, 164), (171, 190), (151, 208), (130, 218), (150, 196)], True)
    canvas.fill(jaw, Dots(0.30, 0.22, 3.0))
    canvas.line(curve([(171, 187), (151, 207), (128, 218)]), INK, 1.7)
    draw_nose_and_mouth(canvas, HERO, open_mouth=False)
    draw_eyes(canvas, HERO)
    for side in (-1, 1):
        brow = [
            (AXIS + side * x, EYE_Y + y) for x, y in ((12, -14), (26, -20), (50, -24), (50, -24), (28, -15), (13, -9))
        ]
        canvas.fill(curve(brow, True), INK)
    scar: list[Point] = [(84, 178), (90, 186), (92, 198)]
    canvas.line(curve(scar), INK, 1.6, taper=0.4)
    for x, y in ((86, 183), (90, 189), (91.5, 195)):
        canvas.line([(x - 3, y + 1.5), (x + 3, y - 1.5)], INK, 1.0)
    _draw_fringe(canvas)
    return canvas.finish()


def _draw_burst(canvas: Canvas) -> None:
    canvas.fill([(0, 0), (256, 0), (256, 320), (0, 320)], Dots(0.62, 0.06, 4.2))
    for i in range(72):
        turn = 2 * math.pi * i / 72
        near = 118 + 26 * math.sin(i * 2.7) + 12 * math.sin(i * 7.1)
        wide = 0.016 + 0.012 * math.sin(i * 5.3) ** 2
        spike = [(near, 0.0), (330.0, -wide), (330.0, wide)]
        points = [(128 + r * math.cos(turn + w), 150 + r * math.sin(turn + w)) for r, w in spike]
        canvas.fill(points, INK if i % 3 else WHITE)


def _draw_coat(canvas: Canvas) -> None:
    half: list[Point] = [(152, 238), (196, 250), (238, 272), (252, 330)]
    body = curve([*half, (252, 330), (4, 330), (4, 330), *mirror(half[::-1], AXIS)[1:]], closed=True)
    canvas.shape(body, INK, INK, 1.8)
    with canvas.inside(body):
        for side in (-1, 1):
            for fold in ([(96, 268), (104, 290), (104, 330)], [(66, 262), (74, 290), (70, 330)]):
                canvas.line(curve([(AXIS + side * x, y) for x, y in fold]), WHITE, 1.6, taper=0.6)
    shirt: list[Point] = [(108, 240), (148, 240), (128, 316)]
    canvas.shape(shirt, WHITE, INK, 1.6)
    tie: list[Point] = [(123, 250), (133, 250), (137, 262), (134, 330), (122, 330), (119, 262)]
    canvas.shape(tie, Dots(0.5, 0.7, 2.6), INK, 1.5)


def _draw_collar(canvas: Canvas) -> None:
    for side in (-1, 1):
        flap: list[Point] = [(104, 226), (96, 244), (112, 266), (127, 250), (112, 240)]
        canvas.shape(flap if side < 0 else mirror(flap, AXIS), WHITE, INK, 1.6)
        lapel: list[Point] = [(98, 238), (72, 252), (80, 276), (70, 280), (118, 326), (124, 318)]
        points = lapel if side < 0 else mirror(lapel, AXIS)
        canvas.shape(points, Dots(0.42, 0.66, 3.0), WHITE, 1.4)


def _draw_fringe(canvas: Canvas) -> None:
    half: list[Point] = [(128, 38), (168, 48), (200, 84), (202, 142), (178, 108), (128, 96)]
    canvas.fill(curve([*half, *mirror(half[-2:0:-1], AXIS)], True), INK)
    for points in (
        lock((52, 100), (82, 84), (66, 214), -10, 0.08),
        lock((174, 84), (204, 100), (190, 222), 10, 0.08),
        lock((62, 88), (104, 74), (80, 160), -12),
        lock((156, 74), (196, 90), (180, 176), 10),
        lock((84, 76), (140, 68), (112, 150), -14),
        lock((132, 70), (178, 80), (154, 158), 8),
        lock((118, 72), (150, 70), (134, 150), 4),
    ):
        canvas.line([*points, points[0]], WHITE, 1.6)
        canvas.fill(points, INK)
    half = [(128, 50), (160, 52), (184, 70), (194, 104), (166, 92), (128, 84)]
    canvas.fill(curve([*half, *mirror(half[-2:0:-1], AXIS)], True), INK)
    lengths = {78: 20, 84: 30, 90: 22, 97: 34, 104: 18, 156: 26, 163: 36, 170: 22}
    for x, length in lengths.items():
        y = 75 + abs(x - 128) ** 1.6 / 22
        canvas.line(curve([(x, y), (x - (128 - x) / 14, y + length)]), WHITE, 3.2, taper=0.5)
    for strand in (
        [(122, 42), (92, 56), (74, 84)],
        [(134, 42), (164, 54), (184, 82)],
        [(128, 42), (120, 60), (118, 80)],
    ):
        canvas.line(curve(strand), WHITE, 1.1, taper=0.7)
