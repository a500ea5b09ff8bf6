"""What a character can have, by name: colours, styles, clothes, backgrounds; and how likely each is."""

from __future__ import annotations

from tools.demo_base.render.colours import Rgb

HAIR_COLOURS: dict[str, Rgb] = {  # sRGB
    "black": (0.045, 0.038, 0.038),
    "darkbrown": (0.13, 0.085, 0.06),
    "brown": (0.27, 0.17, 0.11),
    "lightbrown": (0.42, 0.29, 0.19),
    "auburn": (0.36, 0.14, 0.075),
    "ginger": (0.60, 0.28, 0.12),
    "blonde": (0.72, 0.56, 0.36),
    "platinum": (0.85, 0.78, 0.66),
    "grey": (0.50, 0.49, 0.48),
    "white": (0.80, 0.79, 0.77),
    "pink": (0.80, 0.38, 0.50),
    "blue": (0.20, 0.32, 0.60),
    "teal": (0.15, 0.45, 0.48),
    "purple": (0.42, 0.25, 0.55),
}
EYE_COLOURS: dict[str, Rgb] = {  # sRGB
    "brown": (0.30, 0.17, 0.09),
    "darkbrown": (0.16, 0.09, 0.055),
    "hazel": (0.42, 0.32, 0.15),
    "green": (0.32, 0.45, 0.28),
    "blue": (0.30, 0.47, 0.66),
    "grey": (0.45, 0.52, 0.56),
}
# chance of each eye colour, in that order
EYES_DARK = (0.35, 0.55, 0.06, 0.02, 0.01, 0.01)
EYES_CAUCASIAN = (0.25, 0.12, 0.15, 0.14, 0.24, 0.1)
SKIN_TONES = ((0.42, 0.27, 0.19), (0.80, 0.62, 0.49), (0.85, 0.65, 0.55))  # sRGB, in the order of ETHNICITIES
# a name that stands twice is twice as likely
FEMALE_STYLES = (
    "long",
    "longbang",
    "bob",
    "bobbang",
    "ponytail",
    "pixie",
    "long",
    "wavy",
    "bun",
    "longbang",
    "bob",
)
MALE_STYLES = ("crop", "sideswept", "slick", "curtain", "crop", "sideswept", "messy", "messy")
FEMALE_CURLY = ("afro", "afro", "bun", "ponytail", "pixie", "bob")
MALE_CURLY = ("crop", "afro", "crop")
BEARDS = ("none", "stubble", "beard", "stubble", "none", "none")
NECKLINES = ("crew", "vneck", "turtle", "scoop", "crew", "vneck", "shirt")
BACKGROUNDS = ("foliage", "indoor", "studio", "sky", "city")

# chances of hair colours; they need not add up to 1
DARK_HAIR = {"black": 0.62, "darkbrown": 0.22, "brown": 0.07, "auburn": 0.03, "blonde": 0.02}
ANY_HAIR = {
    "black": 0.14,
    "darkbrown": 0.22,
    "brown": 0.22,
    "lightbrown": 0.14,
    "auburn": 0.08,
    "ginger": 0.05,
    "blonde": 0.13,
    "platinum": 0.04,
}
DYED_HAIR = {"pink": 0.3, "blue": 0.3, "teal": 0.2, "purple": 0.2}
OLD_HAIR = {"grey": 0.6, "white": 0.4}
