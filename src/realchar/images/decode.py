"""From a file to a decoded picture in its own mode; everything that can be wrong with a file ends here."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from PIL import JpegImagePlugin, TiffImagePlugin
from PIL.Image import Image
from PIL.ImageFile import ImageFile

from realchar.errors import InvalidInput
from realchar.images import geometry
from realchar.images.options import MAX_RATIO, Note, PrepareOptions, note
from realchar.images.quiet import quiet
from realchar.images.sniff import HEAD_BYTES, find_format, find_opener, read_webp_size

ORIENTATION = 0x0112  # EXIF tag; 1 is upright, 2 to 8 the turned and mirrored ones, all else is wrong and ignored
PHOTOMETRIC = 262  # TIFF tag; 0: the value 0 is white

CHOOSE = "Choose a PNG, JPG, WebP or TIFF."


@dataclass(frozen=True)
class Decoded:
    """A loaded picture. `scale` > 1: the JPEG was decoded at 1/scale of `size`, the file's own (width, height)."""

    image: Image
    size: tuple[int, int]
    scale: int
    orientation: int  # what is still to be done, 1..8
    rawmode: str  # how the file stores a pixel, in Pillow's words
    white_is_zero: bool = False
    notes: list[Note] = field(default_factory=list)


@contextmanager
def open_stream(source: Path | str | BinaryIO) -> Iterator[BinaryIO]:
    """Open a path, or rewind a binary stream (left open); a stream that can't seek is read into memory."""
    if not isinstance(source, Path | str):
        try:
            source.seek(0)
        except (AttributeError, io.UnsupportedOperation):
            source = io.BytesIO(source.read())
        except (OSError, ValueError) as error:
            raise _unreadable("the upload", error) from error
        yield source
        return
    path = Path(source)
    try:
        if path.is_dir():
            raise InvalidInput("not_picture", f"{path.name!r} is a folder, not a picture. {CHOOSE}")
        if path.exists() and not path.is_file():  # a pipe or a device could block or never end
            raise InvalidInput("not_picture", f"{path.name!r} is not an ordinary file. {CHOOSE}")
        stream = path.open("rb")
    except (OSError, ValueError) as error:
        raise _unreadable(repr(path.name), error) from error
    with stream:
        yield stream


def _unreadable(name: str, error: Exception) -> InvalidInput:
    why = getattr(error, "strerror", None) or str(error)
    return InvalidInput("unreadable", f"{name} can't be read ({why}). Check that it exists and may be read.")


def decode(stream: BinaryIO, options: PrepareOptions, facts: dict[str, Any]) -> Decoded:
    """Decode the first picture of `stream`; `facts` gets format, mode and size as soon as the header told them.

    Raises InvalidInput (not_picture, heic, unsupported, bomb, thin, broken, memory).
    """
    with _decoding():
        name, picture = _open(stream, options)
        if picture.format != "HEIF":
            name = picture.format or name
        facts.update(format=name, mode=picture.mode, size=list(picture.size))
        check_size(picture.size, options)
        size, rawmode = picture.size, _find_rawmode(picture)
        scale = _draft(picture, options)
        tiff = picture.tag_v2 if isinstance(picture, TiffImagePlugin.TiffImageFile) else None
        turned = tiff.get(ORIENTATION) if tiff is not None else 1  # Pillow turns TIFF itself while loading
        white_is_zero = tiff is not None and tiff.get(PHOTOMETRIC) == 0
        picture.load()
    image = picture.copy() if name == "GIF" else picture  # asking a GIF for its frames moves it to another one
    orientation = _find_orientation(picture)
    if orientation > 4:
        facts["size"] = [size[1], size[0]]
    notes = _frame_note(picture, name)
    if orientation != 1 or (isinstance(turned, int) and 2 <= turned <= 8):
        notes.append(note("exif", "Turned upright (camera orientation)"))
    return Decoded(image, size, scale, orientation, rawmode, white_is_zero, notes)


def check_size(size: tuple[int, int], options: PrepareOptions) -> None:
    """Raise InvalidInput if a picture of this (width, height) is too large or too thin to be used."""
    width, height = size
    if min(size) < 1:
        raise InvalidInput("broken", f"The picture has no pixels ({width}×{height}). Save it again and retry.")
    if width * height > options.max_megapixels * 1_000_000:
        raise InvalidInput(
            "bomb",
            f"{width}×{height} pixels are more than the limit of {options.max_megapixels} megapixels. Save it smaller.",
            w=width,
            h=height,
            max=options.max_megapixels,
        )
    if max(size) > MAX_RATIO * min(size):
        raise InvalidInput(
            "thin",
            f"The picture is too narrow ({width}×{height}). Crop it to less than {MAX_RATIO}:1.",
            w=width,
            h=height,
        )


@contextmanager
def enough_memory() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise InvalidInput(
            "memory", "The picture needs more memory than this machine has free. Save it smaller."
        ) from None


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        with quiet():
            yield
    except (InvalidInput, MemoryError):
        raise
    except Exception as error:  # decoders are others' code that meets hostile bytes: any exception may come out
        raise InvalidInput(
            "broken", "The picture is damaged and can't be read to its end. Save it again and retry."
        ) from error


def _open(stream: BinaryIO, options: PrepareOptions) -> tuple[str, ImageFile]:
    head = stream.read(HEAD_BYTES)
    name = find_format(head)
    if not head:
        raise InvalidInput("not_picture", f"This file is empty. {CHOOSE}")
    if name is None:
        raise InvalidInput("not_picture", f"This file is not a picture. {CHOOSE}")
    opener = find_opener(name)
    if opener is None:
        if name == "HEIF":
            raise InvalidInput(
                "heic", "HEIC needs a plugin on this machine. Save it as JPG, or install it: pip install pillow-heif."
            )
        raise _unsupported(name)
    if name == "WEBP" and (size := read_webp_size(head)):
        check_size(size, options)
    stream.seek(0)
    try:
        return name, opener(stream, "")
    except SyntaxError as error:
        if "unknown pixel mode" in str(error):
            raise _unsupported(name) from error
        raise


def _unsupported(name: str) -> InvalidInput:
    return InvalidInput("unsupported", f"This kind of {name} can't be read. Save it as an 8-bit PNG or JPG.", kind=name)


def _find_rawmode(picture: ImageFile) -> str:
    if not picture.tile:
        return picture.mode
    args = picture.tile[0].args
    first = args[0] if isinstance(args, tuple) and args else args
    return first if isinstance(first, str) else picture.mode


def _draft(picture: ImageFile, options: PrepareOptions) -> int:
    """Let the JPEG decoder skip detail that the resize would throw away; twice the target is kept for LANCZOS."""
    if not isinstance(picture, JpegImagePlugin.JpegImageFile):
        return 1
    if options.trim and geometry.is_elongated(picture.size):
        return 1  # what is left after trimming may need every pixel
    width, height = geometry.target_size(picture.size, options)
    before = picture.size
    if before[0] < 2 * width or before[1] < 2 * height:
        return 1
    drafted = picture.draft(None, (2 * width, 2 * height))
    return round(before[0] / drafted[1][2]) if drafted else 1


def _find_orientation(picture: ImageFile) -> int:
    try:
        with quiet():
            value = picture.getexif().get(ORIENTATION)
    except Exception:  # EXIF is free-form bytes of any camera or editor: what can't be read doesn't turn the picture
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _frame_note(picture: ImageFile, name: str) -> list[Note]:
    try:
        with quiet():
            several = bool(getattr(picture, "is_animated", False))
    except Exception:  # a damaged second frame is no harm to the first
        return []
    if not several:
        return []
    if name in ("TIFF", "MPO", "HEIF"):
        return [note("frame", "Several pictures in one file: the first one is used")]
    return [note("frame", "Animation: the first frame is used")]
