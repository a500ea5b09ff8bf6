"""A random adult: everything about one pair that is chance, drawn from one seed.

The order of the draws is part of the data: changing it changes every picture.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tools.demo_base.render import choices
from tools.demo_base.render.colours import Rgb, adjust
from tools.demo_base.render.maths import smoothstep
from tools.demo_base.render.shape import ETHNICITIES, Person, Weights, draw_person, draw_shape, spread


@dataclass(frozen=True)
class Pose:
    """Degrees. Yaw is the head's against the camera, body_yaw the shoulders'."""

    yaw: float
    pitch: float
    roll: float
    body_yaw: float
    arm: float  # how far the upper arms hang down from MakeHuman's A-pose


@dataclass(frozen=True)
class Skin:
    tone: Rgb  # sRGB
    freckles: float  # 0…1, as the next ones
    lip_colour: Rgb | None  # sRGB; None without lipstick
    blush: float
    eyeshadow: float
    lip_amount: float


@dataclass(frozen=True)
class Hair:
    colour: str
    rgb: Rgb  # sRGB
    style: str
    parting: float  # decimetres from the middle
    length: float  # factor, about 1
    wave: float  # 0…1
    seed: int

    @property
    def bangs(self) -> bool:
        return "bang" in self.style

    @property
    def dyed(self) -> bool:
        return self.colour in choices.DYED_HAIR


@dataclass(frozen=True)
class Cloth:
    rgb: Rgb  # sRGB
    second_rgb: Rgb  # sRGB, of trim and stripes
    neckline: str
    stripe: float  # 1 with stripes, else 0


@dataclass(frozen=True)
class Shot:
    """Camera and light."""

    focal: float  # millimetres on a 36 mm sensor
    frame: float  # the head's height as a share of the picture's
    offset_x: float  # metres
    offset_y: float  # share of the picture's height
    height: float  # of the camera, as a share of its distance
    key_azimuth: float  # degrees from straight ahead
    key_elevation: float  # degrees
    key_size: float  # metres
    key_warmth: float  # about -1.7…1.7
    key: float  # intensities, about 1
    fill: float
    rim: float
    environment: float


@dataclass(frozen=True)
class Character:
    seed: int
    person: Person
    shape: Weights
    smile: float  # 0.05…0.95
    pose: Pose
    skin: Skin
    hair: Hair
    beard: str
    eye_colour: str
    eye_rgb: Rgb  # sRGB
    cloth: Cloth
    shot: Shot
    background: str
    background_seed: int

    def record(self) -> dict[str, object]:
        """Return what the index says of a pair."""
        ethnicity = zip(ETHNICITIES, self.person.ethnicity, strict=True)
        return {
            "seed": self.seed,
            "gender": self.person.gender,
            "ethnicity": {name: round(share, 3) for name, share in ethnicity},
            "age": self.person.age,
            "hair": self.hair.style,
            "haircol": self.hair.colour,
            "eyecol": self.eye_colour,
            "beard": self.beard,
            "neck": self.cloth.neckline,
            "bg": self.background,
            "smile": round(self.smile, 2),
            "yaw": round(self.pose.yaw, 1),
        }


def sample(seed: int) -> Character:
    """Draw the character of a seed."""
    rng = np.random.default_rng(seed)
    person = draw_person(rng)
    shape, smile = draw_shape(rng, person)
    pose = _pose(rng)
    skin = _skin(rng, person)
    hair = _hair(rng, person)
    beard = "none" if person.female else str(rng.choice(choices.BEARDS))
    caucasian = person.ethnicity[2]
    chances = np.array(choices.EYES_DARK) * (1 - caucasian) + np.array(choices.EYES_CAUCASIAN) * caucasian
    eye_colour = _pick(rng, dict(zip(choices.EYE_COLOURS, chances.tolist(), strict=True)))
    eye_rgb = _vary(rng, choices.EYE_COLOURS[eye_colour], (0.85, 1.15), (0.9, 1.15), 0.01)
    cloth = _cloth(rng, skin.tone)
    shot = _shot(rng)
    background = str(rng.choice(choices.BACKGROUNDS))
    background_seed = int(rng.integers(1 << 30))
    return Character(
        seed,
        person,
        shape,
        smile,
        pose,
        skin,
        hair,
        beard,
        eye_colour,
        eye_rgb,
        cloth,
        shot,
        background,
        background_seed,
    )


def _rgb(colour: object) -> Rgb:
    red, green, blue = np.asarray(colour, float).tolist()
    return red, green, blue


def _pick(rng: np.random.Generator, chances: Mapping[str, float]) -> str:
    """Draw a name; the chances need not add up to 1."""
    names, weights = list(chances), np.array(list(chances.values()))
    return str(rng.choice(names, p=weights / weights.sum()))


def _vary(
    rng: np.random.Generator, rgb: Rgb, saturation: tuple[float, float], value: tuple[float, float], hue: float
) -> Rgb:
    return _rgb(adjust(rgb, rng.uniform(*saturation), rng.uniform(*value), spread(rng, hue)))


def _pose(rng: np.random.Generator) -> Pose:
    yaw = float(np.clip(rng.normal(0, 13), -25, 25))
    pitch = float(np.clip(rng.normal(0, 4), -8, 8))
    roll = float(np.clip(rng.normal(0, 4), -9, 9))
    body_yaw = float(np.clip(rng.normal(0, 10) + 0.4 * yaw, -25, 25))
    return Pose(yaw, pitch, roll, body_yaw, arm=rng.uniform(26, 34))


def _skin(rng: np.random.Generator, person: Person) -> Skin:
    tone = np.array(person.ethnicity) @ np.array(choices.SKIN_TONES)
    light = rng.uniform(-0.09, 0.08)
    tint = np.array([1, 1 + spread(rng, 0.02), 1 + spread(rng, 0.04)])
    tone = np.clip(tone * (1 + light * 1.3) * tint, 0.12, 0.92)
    female = person.female
    freckles = rng.uniform(0.3, 0.8) if person.ethnicity[2] > 0.5 and rng.random() < 0.25 else 0.0
    lipstick = female and rng.random() < 0.6
    lip_colour = _vary(rng, (0.68, 0.28, 0.28), (0.7, 1.25), (0.75, 1.1), 0.012) if lipstick else None
    blush = rng.uniform(0, 0.35) if female and rng.random() < 0.6 else 0.0
    eyeshadow = rng.uniform(0.2, 0.7) if female and rng.random() < 0.5 else 0.0
    lip_amount = rng.uniform(0.35, 0.8) if lip_colour else 0.5
    return Skin(_rgb(tone), freckles, lip_colour, blush, eyeshadow, lip_amount)


def _hair_colour(rng: np.random.Generator, person: Person) -> str:
    chances = choices.DARK_HAIR if person.ethnicity[0] + person.ethnicity[1] > 0.6 else choices.ANY_HAIR
    if rng.random() < 0.07 and person.old < 0.4:
        chances = choices.DYED_HAIR
    if rng.random() < smoothstep(0.35, 0.85, person.old):
        chances = choices.OLD_HAIR
    return _pick(rng, chances)


def _hair(rng: np.random.Generator, person: Person) -> Hair:
    colour = _hair_colour(rng, person)
    rgb = _vary(rng, choices.HAIR_COLOURS[colour], (0.9, 1.1), (0.9, 1.15), 0.01)
    style = rng.choice(choices.FEMALE_STYLES if person.female else choices.MALE_STYLES)
    if person.ethnicity[0] > 0.6 and rng.random() < 0.6:
        style = rng.choice(choices.FEMALE_CURLY if person.female else choices.MALE_CURLY)
    parting = float(rng.choice([-1, 1]) * rng.uniform(0.0, 0.30))
    length = rng.uniform(0.8, 1.2)
    wave = rng.uniform(0, 1)
    return Hair(colour, rgb, str(style), parting, length, wave, int(rng.integers(1 << 30)))


def _cloth(rng: np.random.Generator, skin: Rgb) -> Cloth:
    hue = rng.random()
    saturation = rng.uniform(0.08, 0.75)
    value = float(rng.choice([rng.uniform(0.08, 0.25), rng.uniform(0.3, 0.75), rng.uniform(0.75, 0.93)]))
    rgb = colorsys.hsv_to_rgb(hue, saturation, value)
    if np.abs(np.array(rgb) - np.array(skin)).max() < 0.22:  # looks like skin
        rgb = colorsys.hsv_to_rgb((hue + 0.5) % 1, 0.6, 0.45)
    neckline = str(rng.choice(choices.NECKLINES))
    stripe = float(rng.random() < 0.12)
    second = _rgb(adjust(rgb, 0.8, rng.uniform(0.5, 1.5))) if rng.random() < 0.5 else rgb
    return Cloth(rgb, second, neckline, stripe)


def _shot(rng: np.random.Generator) -> Shot:
    return Shot(  # arguments are evaluated, and so drawn, in this order
        focal=rng.uniform(62, 105),
        frame=rng.uniform(0.58, 0.70),
        offset_x=spread(rng, 0.018),
        offset_y=abs(spread(rng, 0.02)),
        height=spread(rng, 0.035),
        key_azimuth=float(rng.choice([-1, 1]) * rng.uniform(15, 65)),
        key_elevation=rng.uniform(18, 50),
        key_size=rng.uniform(0.35, 1.1),
        key_warmth=spread(rng, 1.0),
        key=rng.uniform(0.8, 1.25),
        fill=rng.uniform(0.35, 0.9),
        rim=rng.uniform(0.3, 1.2) * (rng.random() < 0.6),
        environment=rng.uniform(0.35, 0.8),
    )
