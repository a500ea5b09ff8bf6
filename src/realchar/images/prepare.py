"""The preprocessing in one line of steps: decode, flatten, trim, resize, turn, sRGB, gray, enlarge, pad."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image

from realchar.errors import InvalidInput
from realchar.images import color, geometry
from realchar.images.decode import Decoded, decode, enough_memory, open_stream
from realchar.images.options import Note, PreparedPicture, PrepareOptions, accepted, note
from realchar.images.pixels import flatten
from realchar.images.quiet import quiet

_TURN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_DEFAULT = PrepareOptions()


def prepare(source: Path | str | BinaryIO, options: PrepareOptions = _DEFAULT) -> PreparedPicture:
    """Turn a picture file into what the model sees. Nothing of the file but its pixels gets into the result.

    Raises InvalidInput; its `args_["source"]` holds format, mode and size if the header could be read, else None.
    """
    facts: dict[str, Any] = {}
    try:
        with open_stream(source) as stream, quiet(), enough_memory():
            decoded = decode(stream, options, facts)
            picture, notes = _shape(decoded, options)
    except InvalidInput as error:
        error.args_["source"] = facts or None
        raise
    worked, enlarge_notes = _enlarge(picture, options)
    notes += enlarge_notes
    padded, box = geometry.pad(worked, options.multiple)
    if padded.size != worked.size:
        width, height = padded.size
        text = f"Edges padded to {width}×{height} for the model, cut off again afterwards"
        notes.append(note("pad", text, w=width, h=height))
    return PreparedPicture(picture, padded, box, accepted(facts, picture.size, padded.size, notes))


def _shape(decoded: Decoded, options: PrepareOptions) -> tuple[Image.Image, list[Note]]:
    icc = decoded.image.info.get("icc_profile")
    flat, flat_notes = flatten(decoded)
    notes = decoded.notes + flat_notes
    if flat.mode == "CMYK" and decoded.image.format in ("JPEG", "MPO") and "adobe" not in decoded.image.info:
        flat = color.right_ink(flat)
    known_gray = flat.mode == "L"
    box, trim_notes = _trim(flat, decoded, options)
    resized, resize_notes = _resize(flat, box, decoded, options)
    if decoded.orientation != 1:
        resized = resized.transpose(_TURN[decoded.orientation])
    rgb, color_notes = color.to_srgb(resized, icc if isinstance(icc, bytes) else None)
    gray = color.to_gray(rgb, known_gray)
    gray_notes: list[Note] = []
    if gray is not None:
        gray, gray_notes = color.enhance_gray(gray, options.enhance_gray)
        rgb = gray.convert("RGB")
    # a new picture from bare bytes: Pillow copies the file's metadata along with every operation
    bare = Image.frombytes("RGB", rgb.size, rgb.tobytes())
    return bare, notes + trim_notes + resize_notes + color_notes + gray_notes


def _trim(
    flat: Image.Image, decoded: Decoded, options: PrepareOptions
) -> tuple[tuple[float, float, float, float], list[Note]]:
    """Return what of `flat` is kept, in its own pixels."""
    whole = (0, 0, decoded.size[0] / decoded.scale, decoded.size[1] / decoded.scale)
    if not (options.trim and geometry.is_elongated(decoded.size)):
        return whole, []
    box = geometry.find_margins(flat)
    if box is None:
        return whole, []
    width, height = _upright(flat.size, decoded)
    new_width, new_height = _upright((box[2] - box[0], box[3] - box[1]), decoded)
    text = f"Even margins trimmed (auto-cropped): {width}×{height} → {new_width}×{new_height}"
    return box, [note("trim", text, w=width, h=height, tw=new_width, th=new_height)]


def _resize(
    flat: Image.Image, box: tuple[float, float, float, float], decoded: Decoded, options: PrepareOptions
) -> tuple[Image.Image, list[Note]]:
    before = round((box[2] - box[0]) * decoded.scale), round((box[3] - box[1]) * decoded.scale)
    after = geometry.target_size(before, options)
    if after == flat.size == before:
        return flat, []
    resized = flat.resize(after, Image.Resampling.LANCZOS, box, reducing_gap=2.0)
    if after == before:
        return resized, []
    (width, height), (new_width, new_height) = _upright(before, decoded), _upright(after, decoded)
    text = f"{width}×{height} → {new_width}×{new_height} (LANCZOS, RGB on white)"
    return resized, [note("resize", text, w=width, h=height, pw=new_width, ph=new_height)]


def _enlarge(picture: Image.Image, options: PrepareOptions) -> tuple[Image.Image, list[Note]]:
    size = geometry.work_size(picture.size, options)
    if size == picture.size:
        return picture, []
    (width, height), (own_width, own_height) = size, picture.size
    text = f"Enlarged to {width}×{height} for the model; the result comes back at {own_width}×{own_height}"
    enlarged = picture.resize(size, Image.Resampling.LANCZOS)
    return enlarged, [note("enlarge", text, w=width, h=height, pw=own_width, ph=own_height)]


def _upright(size: tuple[int, int], decoded: Decoded) -> tuple[int, int]:
    return (size[1], size[0]) if decoded.orientation > 4 else size
