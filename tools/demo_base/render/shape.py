"""The face's shape and expression: weights of MakeHuman's morph targets, drawn at random.

The order of the draws is part of the data: changing it changes every picture. So is the order of the weights, because
morphs are added up one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ETHNICITIES = ("african", "asian", "caucasian")
HEADS = ("oval", "round", "square", "rectangular", "triangular", "invertedtriangular", "diamond")
YOUNG, SPAN = 25, 50  # years: MakeHuman's "young" target, and how far "old" is from it

Weights = dict[str, float]

# (target, how far it goes) for targets named …-decr and …-incr
SLIDERS = (
    ("head/head-scale-horiz", 0.2),
    ("head/head-scale-vert", 0.2),
    ("head/head-fat", 0.25),
    ("chin/chin-height", 0.25),
    ("chin/chin-width", 0.3),
    ("chin/chin-prominent", 0.25),
    ("forehead/forehead-scale-vert", 0.2),
    ("nose/nose-scale-vert", 0.2),
    ("nose/nose-scale-horiz", 0.25),
    ("nose/nose-scale-depth", 0.25),
    ("nose/nose-hump", 0.25),
    ("nose/nose-volume", 0.25),
    ("nose/nose-width1", 0.3),
    ("nose/nose-width3", 0.3),
    ("nose/nose-point-width", 0.3),
    ("mouth/mouth-scale-horiz", 0.25),
    ("mouth/mouth-scale-vert", 0.2),
    ("mouth/mouth-upperlip-volume", 0.3),
    ("mouth/mouth-lowerlip-volume", 0.3),
    ("mouth/mouth-cupidsbow", 0.3),
)
# (target, how far it goes, its two ends)
NAMED_SLIDERS = (
    ("nose/nose-point", 0.25, "down", "up"),
    ("nose/nose-base", 0.2, "down", "up"),
    ("mouth/mouth-trans", 0.15, "down", "up"),
    ("nose/nose-curve", 0.2, "concave", "convex"),
    ("eyebrows/eyebrows-trans", 0.2, "down", "up"),
    ("eyebrows/eyebrows-angle", 0.25, "down", "up"),
)
# the same for targets that exist for the left and the right side
SIDED_SLIDERS = (
    ("cheek/{}-cheek-bones", 0.3, "decr", "incr"),
    ("cheek/{}-cheek-volume", 0.3, "decr", "incr"),
    ("eyes/{}-eye-scale", 0.18, "decr", "incr"),
    ("eyes/{}-eye-height2", 0.2, "decr", "incr"),
    ("eyes/{}-eye-corner1", 0.2, "down", "up"),
    ("eyes/{}-eye-corner2", 0.2, "down", "up"),
    ("eyes/{}-eye-trans", 0.12, "in", "out"),
)
FEMALE_BIAS = {
    "nose/nose-scale-vert-decr": 0.15,
    "nose/nose-volume-decr": 0.25,
    "nose/nose-point-up": 0.2,
    "nose/nose-width3-decr": 0.15,
    "chin/chin-width-decr": 0.25,
    "mouth/mouth-upperlip-volume-incr": 0.25,
    "mouth/mouth-lowerlip-volume-incr": 0.25,
    "neck/neck-scale-horiz-decr": 0.35,
    "head/head-fat-decr": 0.1,
}
MALE_BIAS = {"nose/nose-volume-decr": 0.1, "neck/neck-scale-horiz-incr": 0.1, "chin/chin-width-incr": 0.1}
SHOULDERS = "torso/measure-shoulder-dist-decr"
# what the drawing's eyes have on top of the photo's
DRAWN_EYES: Weights = {
    f"eyes/{side}-eye-{part}-incr": weight
    for side in "lr"
    for part, weight in (("scale", 1.1), ("height2", 0.9), ("height1", 0.6), ("height3", 0.8))
}


@dataclass(frozen=True)
class Person:
    """Who it is. MakeHuman's "young" is 25: nobody younger can be drawn."""

    female: bool
    masculinity: float  # 0…1, the share of MakeHuman's male target
    ethnicity: tuple[float, float, float]  # shares in the order of ETHNICITIES
    old: float  # 0 (25 years) … 0.95 (72.5 years)

    @property
    def age(self) -> int:
        """Years."""
        return round(YOUNG + self.old * SPAN)

    @property
    def gender(self) -> str:
        return "female" if self.female else "male"


def draw_person(rng: np.random.Generator) -> Person:
    female = bool(rng.random() < 0.52)
    masculinity = rng.uniform(0, 0.12) if female else rng.uniform(0.86, 1)
    african, asian, caucasian = (float(share) for share in rng.dirichlet((0.35, 0.35, 0.35)))
    old = float(rng.beta(1.0, 2.2)) * 0.95
    return Person(female, masculinity, (african, asian, caucasian), old)


def spread(rng: np.random.Generator, size: float) -> float:
    """Draw from a normal distribution of deviation 0.75 `size`, cut at 1.7 `size`."""
    return float(np.clip(rng.normal(0, 0.75 * size), -1.7 * size, 1.7 * size))


def draw_shape(rng: np.random.Generator, person: Person) -> tuple[Weights, float]:
    """Return the weights of the morph targets, and how much the person smiles (0.05…0.95)."""
    weights = _macro(rng, person)
    head = str(rng.choice(HEADS))
    weights[f"head/head-{head}"] = rng.uniform(0.0, 0.6)
    _add(weights, {"head/head-oval": 0.3 if person.female else 0.1})
    for name, size in SLIDERS:
        _slide(weights, name, spread(rng, size), "decr", "incr")
    for name, size, low, high in NAMED_SLIDERS:
        _slide(weights, name, spread(rng, size), low, high)
    for name, size, low, high in SIDED_SLIDERS:
        amount = spread(rng, size)
        for side in "lr":
            _slide(weights, name.format(side), amount, low, high)
    smile = _expression(rng, weights)
    _add(weights, _eye_bias(person.female))
    _add(weights, FEMALE_BIAS if person.female else MALE_BIAS)
    weights[SHOULDERS] = 0.35 if person.female else 0.2
    return weights, smile


def _macro(rng: np.random.Generator, person: Person) -> Weights:
    """Return the weights for gender, age, ethnicity, muscle and weight: products of shares that add up to 1."""
    genders = (("female", 1 - person.masculinity), ("male", person.masculinity))
    ages = (("young", 1 - person.old), ("old", person.old))
    weights = {}
    for ethnicity, share in zip(ETHNICITIES, person.ethnicity, strict=True):
        for gender, is_gender in genders:
            for age, is_age in ages:
                weights[f"macrodetails/{ethnicity}-{gender}-{age}"] = share * is_gender * is_age
    muscle = _three("muscle", rng.uniform(0.35, 0.75))
    weight = _three("weight", rng.uniform(0.3, 0.72))
    for gender, is_gender in genders:
        for age, is_age in ages:
            for muscle_name, has_muscle in muscle:
                for weight_name, has_weight in weight:
                    name = f"macrodetails/universal-{gender}-{age}-{muscle_name}-{weight_name}"
                    weights[name] = is_gender * is_age * has_muscle * has_weight
    return weights


def _three(what: str, amount: float) -> Sequence[tuple[str, float]]:
    """Return the shares of the targets min…, average… and max… for an amount of 0…1."""
    return (
        (f"min{what}", max(0, 1 - 2 * amount)),
        (f"average{what}", 1 - abs(2 * amount - 1)),
        (f"max{what}", max(0, 2 * amount - 1)),
    )


def _slide(weights: Weights, name: str, amount: float, low: str, high: str) -> None:
    weights[f"{name}-{high if amount > 0 else low}"] = abs(amount)


def _add(weights: Weights, more: Weights) -> None:
    for name, weight in more.items():
        weights[name] = weights.get(name, 0) + weight


def _expression(rng: np.random.Generator, weights: Weights) -> float:
    smile = float(np.clip(rng.normal(0.45, 0.25), 0.05, 0.95))
    for side in ("Left", "Right"):
        weights["mouthSmile" + side] = smile * 0.55 * rng.uniform(0.85, 1.15)
        weights["cheekSquint" + side] = smile * 0.1
        weights["eyeWide" + side] = 0.04 + max(0, spread(rng, 0.06))
        weights["browOuterUp" + side] = max(0, spread(rng, 0.2))
        weights["browDown" + side] = max(0, spread(rng, 0.15))
    weights["browInnerUp"] = max(0, spread(rng, 0.1))
    weights["mouth/mouth-angles-up"] = 0.30 + 0.25 * smile
    return smile


def _eye_bias(female: bool) -> Weights:
    """Return what opens the eyes wider than MakeHuman's average."""
    bias = {
        "eyes/{}-eye-scale-incr": 0.30 if female else 0.15,
        "eyes/{}-eye-height2-incr": 0.28,
        "eyes/{}-eye-corner2-up": 0.15 if female else 0,
        "cheek/{}-cheek-bones-incr": 0.2,
    }
    return {name.format(side): weight for name, weight in bias.items() for side in "lr"}
