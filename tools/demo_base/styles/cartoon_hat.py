"""A man with glasses, moustache and hat as a western cartoon draws him, landscape: thick outlines, dots for eyes."""

from __future__ import annotations

from PIL import Image

from tools.demo_base.styles.canvas import Canvas, Color, Fade, Point, curve, ellipse

INK: Color = (34, 26, 34)
SKIN, SKIN_SHADE, NOSE = (246, 196, 150), (222, 156, 112), (240, 150, 118)
HAT, HAT_DARK, BAND = (122, 84, 58), (90, 58, 42), (214, 70, 58)
SHIRT, SHIRT_DARK, BEARD = (248, 208, 78), (226, 168, 48), (112, 62, 40)
BOLD = 3.4


def draw_cartoon_hat() -> Image.Image:
    canvas = Canvas(384, 256)
    _draw_town(canvas)
    _draw_body(canvas)
    _draw_head(canvas)
    _draw_glasses(canvas)
    _draw_nose_and_moustache(canvas)
    _draw_hat(canvas)
    return canvas.finish()


def _draw_town(canvas: Canvas) -> None:
    canvas.fill([(0, 0), (384, 0), (384, 256), (0, 256)], Fade((112, 200, 226), (206, 240, 236)))
    canvas.fill(ellipse(52, 48, 24), (255, 226, 110))
    for cloud in ((300, 44), (326, 36), (350, 46), (120, 30), (142, 24)):
        canvas.fill(ellipse(*cloud, 24, 13), (255, 255, 255))
    houses: tuple[tuple[float, float, float, Color], ...] = (
        (6, 130, 62, (232, 120, 96)),
        (76, 156, 52, (120, 170, 130)),
        (252, 150, 56, (150, 130, 190)),
        (316, 120, 60, (240, 170, 90)),
    )
    for x, top, wide, paint in houses:
        canvas.shape([(x, top), (x + wide, top), (x + wide, 260), (x, 260)], paint, INK, 2.2)
        roof = [(x - 5, top), (x + wide / 2, top - 26), (x + wide + 5, top)]
        canvas.shape(roof, (150, 76, 70), INK, 2.2)
        for row in range(3):
            for column in (0.2, 0.6):
                left, up = x + wide * column, top + 14 + row * 34
                pane = [(left, up), (left + wide * 0.24, up), (left + wide * 0.24, up + 18), (left, up + 18)]
                canvas.shape(pane, (255, 240, 180), INK, 1.8)


def _draw_body(canvas: Canvas) -> None:
    body = curve([(160, 206), (224, 206), (268, 222), (292, 270), (292, 270), (92, 270), (92, 270), (116, 222)], True)
    canvas.shape(body, SHIRT, INK, BOLD)
    with canvas.inside(body):
        for x in (112, 140, 244, 272):
            canvas.line([(x, 200), (x, 270)], SHIRT_DARK, 8)
        for y in (228, 250):
            canvas.line([(80, y), (300, y)], SHIRT_DARK, 5, opacity=0.7)
    for x in (138, 246):
        canvas.line([(x, 210), (x + (6 if x < 192 else -6), 262)], INK, 14)
        canvas.line([(x, 210), (x + (6 if x < 192 else -6), 262)], (70, 110, 170), 9)
    neck = curve([(168, 180), (216, 180), (218, 214), (192, 226), (166, 214)], True)
    canvas.shape(neck, SKIN_SHADE, INK, BOLD)
    for side in (-1, 1):
        bow = curve([(192 + side * x, y) for x, y in ((4, 226), (34, 212), (38, 240), (6, 234))], True)
        canvas.shape(bow, BAND, INK, BOLD)
    canvas.shape(ellipse(192, 229, 7, 8), (170, 44, 44), INK, BOLD)


def _draw_head(canvas: Canvas) -> None:
    for side in (-1, 1):
        canvas.shape(ellipse(192 + side * 58, 132, 13, 18, side * 12), SKIN, INK, BOLD)
        canvas.line(curve([(192 + side * x, y) for x, y in ((62, 122), (55, 130), (60, 140))]), INK, 2.0, taper=0.4)
    head = curve(
        [
            (192, 66),
            (238, 78),
            (250, 120),
            (250, 158),
            (230, 196),
            (192, 208),
            (154, 196),
            (134, 158),
            (134, 120),
            (146, 78),
        ],
        True,
    )
    canvas.shape(head, SKIN, INK, BOLD)
    with canvas.inside(head):
        canvas.fill(curve([(236, 70), (262, 70), (262, 210), (196, 214), (232, 186), (240, 140)], True), SKIN_SHADE)
        canvas.fill(curve([(120, 84), (264, 84), (258, 106), (192, 98), (126, 106)], True), SKIN_SHADE)
        stubble = curve(
            [(134, 160), (160, 172), (192, 166), (224, 172), (250, 160), (232, 200), (192, 214), (152, 200)], True
        )
        canvas.fill(stubble, (226, 170, 132))
    for side in (-1, 1):
        burns = curve([(192 + side * x, y) for x, y in ((48, 96), (60, 96), (59, 142), (52, 146))], True)
        canvas.shape(burns, BEARD, INK, 2.4)


def _draw_glasses(canvas: Canvas) -> None:
    for side in (-1, 1):
        x = 192 + side * 28
        lens = ellipse(x, 130, 22, 21)
        canvas.shape(lens, (250, 252, 250), INK, 5.0)
        with canvas.inside(lens):
            canvas.fill([(x - 24, 146), (x + 2, 104), (x + 10, 104), (x - 16, 150)], (196, 228, 240))
        canvas.fill(ellipse(x - side * 4, 133, 8.2, 9.4), (92, 62, 40))
        canvas.fill(ellipse(x - side * 4, 133, 5.0, 6.2), INK)
        canvas.fill(ellipse(x - side * 4 - 2.5, 129, 2.6, 3.0), (255, 255, 255))
        lid = curve([(x - 20, 124), (x - 10, 115), (x + 10, 115), (x + 20, 124)])
        canvas.fill([*lid, (x + 20, 108), (x - 20, 108)], SKIN_SHADE)
        canvas.line(lid, INK, 2.4)
        canvas.line([*lens, lens[0]], INK, 5.0)
        canvas.line([(192 + side * 50, 126), (192 + side * 58, 122)], INK, 4.4)
        brow = curve(
            [(192 + side * u, v) for u, v in ((10, 104), (28, 94), (50, 102), (48, 108), (28, 102), (12, 110))], True
        )
        canvas.shape(brow, BEARD, INK, 2.0)
    canvas.line(curve([(186, 128), (192, 124), (198, 128)]), INK, 4.6)


def _draw_nose_and_moustache(canvas: Canvas) -> None:
    grin = curve([(164, 178), (192, 182), (220, 178), (214, 194), (192, 200), (170, 194)], True)
    canvas.shape(grin, (120, 38, 44), INK, 2.6)
    with canvas.inside(grin):
        canvas.fill([(160, 174), (224, 174), (220, 187), (164, 187)], (255, 255, 250))
        canvas.fill(ellipse(192, 202, 16, 7), (232, 110, 110))
    for side in (-1, 1):
        half: list[Point] = [(0, 162), (18, 160), (38, 168), (52, 160), (52, 160), (46, 180), (26, 186), (0, 176)]
        moustache = curve([(192 + side * x, y) for x, y in half], True)
        canvas.shape(moustache, BEARD, INK, BOLD)
        canvas.line(
            curve([(192 + side * x, y) for x, y in ((10, 168), (26, 174), (40, 174))]), (160, 96, 62), 2.2, taper=0.6
        )
    nose = curve([(186, 132), (198, 132), (210, 152), (206, 166), (192, 170), (178, 166), (174, 152)], True)
    canvas.shape(nose, NOSE, INK, BOLD)
    canvas.fill(ellipse(186, 150, 4, 6, 20), (255, 206, 180))


def _draw_hat(canvas: Canvas) -> None:
    crown = curve(
        [(140, 84), (142, 40), (160, 18), (178, 24), (192, 30), (206, 24), (226, 16), (244, 40), (246, 84), (192, 94)],
        True,
    )
    canvas.shape(crown, HAT, INK, BOLD)
    with canvas.inside(crown):
        canvas.fill(curve([(226, 10), (252, 10), (252, 100), (210, 100), (228, 60)], True), HAT_DARK)
        canvas.line(curve([(192, 28), (188, 44), (192, 56)]), INK, 2.4, taper=0.6)
        canvas.fill(curve([(130, 64), (192, 74), (256, 64), (256, 84), (192, 96), (130, 84)], True), BAND)
        canvas.line(curve([(130, 64), (192, 74), (256, 64)]), INK, 2.6)
    brim = curve([(92, 82), (140, 76), (192, 88), (244, 76), (294, 80), (262, 100), (192, 106), (122, 102)], True)
    canvas.shape(brim, HAT, INK, BOLD)
    with canvas.inside(brim):
        canvas.fill(curve([(86, 92), (192, 102), (298, 90), (270, 112), (192, 116), (110, 112)], True), HAT_DARK)
    feather = curve([(236, 76), (250, 46), (274, 22), (274, 22), (270, 52), (250, 78)], True)
    canvas.shape(feather, (84, 172, 132), INK, 2.6)
    canvas.line(curve([(242, 76), (254, 50), (270, 28)]), INK, 1.6)
