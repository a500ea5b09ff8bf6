"""A pixel-art elf knight, 32x40 fat pixels: the left half is typed below, the right half is its mirror image."""

from __future__ import annotations

from PIL import Image

from tools.demo_base.styles.canvas import Color

FAT = 8  # pixels of the picture to a side of a fat pixel
PALETTE: dict[str, Color] = {
    "#": (34, 28, 52),  # outline
    "y": (206, 196, 236),  # hair
    "Y": (160, 142, 204),
    "o": (108, 88, 160),
    "h": (246, 240, 255),
    "s": (255, 214, 176),  # skin
    "S": (232, 164, 132),
    "p": (244, 142, 128),
    "w": (255, 255, 255),
    "b": (226, 120, 60),  # iris
    "B": (132, 48, 44),
    "c": (255, 206, 120),
    "m": (176, 70, 78),  # mouth
    "g": (206, 62, 84),  # stone of the circlet, cloak
    "G": (138, 36, 70),
    "a": (206, 216, 232),  # armour
    "A": (132, 148, 184),
    "k": (84, 92, 132),
    "t": (244, 196, 72),  # gold trim
}
HALF = """
................
..........######
........##yyyyyy
.......#yyyyhhyy
......#yyyhhhyyy
.....#yyyhhyyyYy
....#yyyhyyyyYyy
....#yyyyyyyyYyy
...#yyyyyyyyYyyy
...#yYyyyyyyYyyy
...#yYyyyyyYyyyY
..#yyYyyyytYyyyY
..#yYyyyyYtttyYt
..#yYyyyYs#YtttG
..#yYyyYsss#YSsg
#.#yYyYssssssSss
s##yYyY#####ssss
ss#yYYs##ww#ssss
#sSyYYs#BBwwssss
#SsyYos#BB#wssss
.#SyYos#bb#wssss
..#yYoss#cbwssss
..#yYospsssssssS
..#yYYsppsssssss
.#yyYoSsssssssmm
.#yyYo#Ssssssssm
.#yYYo.#SsssssSS
#yyYo#..##SSssss
#yyYo#....#SSSss
#yYYo#..###SSSSS
#yYo#.##aa#SSSSs
.#o#.#awwak#SSss
..#.#awaaaAk#tSS
...#awaaaaAAk#tt
..#gaaaaaAAkg##t
.#ggGaaAAAkgGaa#
#ggGG#kkkkGGawaa
#gGG#awaaAkGaaaa
#gG##aaaAAk#aaaA
#G#g#aaAAAk#aaAA
"""


def draw_pixel() -> Image.Image:
    rows = HALF.strip().splitlines()
    image = Image.new("RGB", (2 * len(rows[0]), len(rows)))
    for y, row in enumerate(rows):
        for x, letter in enumerate(row + row[::-1]):
            image.putpixel((x, y), PALETTE[letter] if letter in PALETTE else _sky(x, y))
    for x, y, letter in (
        (10, 18, "w"),
        (21, 18, "w"),
        (20, 18, "B"),
        (11, 4, "h"),
        (20, 5, "y"),
        (21, 4, "y"),
        (19, 4, "y"),
    ):
        image.putpixel((x, y), PALETTE[letter])  # the light comes from the left on both halves
    return image.resize((image.width * FAT, image.height * FAT), Image.Resampling.NEAREST)


def _sky(x: int, y: int) -> Color:
    """Return an evening sky in four bands with a checkered change between them, and stars."""
    bands: tuple[Color, ...] = ((26, 58, 92), (36, 92, 120), (66, 138, 146), (150, 196, 170))
    if (x * 7 + y * 13) % 61 == 0 and y < 24:
        return (255, 250, 220)
    band, within = divmod(y, 10)
    mixed = within >= 8 and (x + y) % 2
    return bands[min(band + bool(mixed), 3)]
