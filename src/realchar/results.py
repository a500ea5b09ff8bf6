"""Result files: stamped and clean copy, all parameters inside, written atomically; and reading the parameters back.

PNG carries the text chunks `parameters` (the form that A1111 made common) and `realcharacters` (a JSON block); JPEG and
WebP carry the same two in the EXIF UserComment.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image, PngImagePlugin, UnidentifiedImageError

from realchar import __version__
from realchar.errors import InvalidInput, storage_error
from realchar.schema import MACHINE_CHOICES, EditRequest
from realchar.watermark import stamp, stamp_text

CHUNK = "realcharacters"
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_USER_COMMENT = 0x9286
_UNICODE = b"UNICODE\0"


def parameters(request: EditRequest, size: tuple[int, int], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON block: the request, the size in pixels, and `facts` (base, LoRA hashes, plan, source …).

    Choices for this machine are left out of the request: the plan tells them as facts, and no file asks for them again.
    """
    asked = _elsewhere(request.to_json())
    return {"app": "RealCharacters", "version": __version__, "request": asked, "size": list(size), **facts}


def _elsewhere(request: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a request as it means the same on any machine."""
    return {key: value for key, value in request.items() if key not in MACHINE_CHOICES}


def parameters_text(params: dict[str, Any]) -> str:
    """Return the same as the line that image browsers know: prompt, negative prompt, `Steps: …, Seed: …`."""
    request = EditRequest.from_json(params["request"])
    base, loras = params.get("base", {}), params.get("loras", [])
    pairs = {
        "Steps": request.steps,
        "Sampler": "Euler (flow matching)",
        "CFG scale": request.cfg,
        "Seed": request.seed,
        "Size": "{}x{}".format(*params["size"]),
        "Model hash": base.get("fingerprint"),
        "Model": base.get("title"),
        "Lora hashes": '"' + ", ".join(f"{x['name']}: {x['sha256'][:12]}" for x in loras) + '"' if loras else None,
        "Lora switches": _switches(params) or None,
        "Lora strengths": ", ".join(f"{x['strength']:g}" for x in loras) if loras else None,
        "Size policy": request.size,
        "Preset": request.preset,
        "Version": f"RealCharacters {params['version']}",
    }
    line = ", ".join(f"{key}: {value}" for key, value in pairs.items() if value is not None)
    return f"{request.prompt}\nNegative prompt: {request.negative_prompt}\n{line}"


def _switches(params: dict[str, Any]) -> str:
    """Return from which step on other versions counted, and which."""
    told = []
    for each in params.get("switches", ()):
        loras = " + ".join(f"{x['name']}: {x['sha256'][:12]}" for x in each["loras"]) or "none"
        told.append(f"from step {each['step']} {loras}")
    return '"' + "; ".join(told) + '"' if told else ""


def version_label(loras: list[dict[str, Any]]) -> str:
    """Return how the stamp names the weights: `v3056`, `base` without a LoRA, the name where it has no number."""
    if not loras:
        return "base"
    first = loras[0]
    label = f"v{first['version']}" if first.get("version") is not None else str(first["name"])[:24]
    label = label if label.isascii() else first["sha256"][:8]
    return label + "".join(f"+{len(loras) - 1}" for _ in loras[1:2])


def stamped(image: Image.Image, params: dict[str, Any]) -> Image.Image:
    request = EditRequest.from_json(params["request"])
    used = [params.get("loras", []), *(each["loras"] for each in params.get("switches", ()))]
    return stamp(image, stamp_text(request, ">".join(map(version_label, used)), image.size))


def save(image: Image.Image, target: Path, params: dict[str, Any] | None = None) -> None:
    """Write the picture with its parameters; after any failure there is the old file, or none, never half of one.

    The suffix must be one of FORMATS (see `check_target`). Raises StorageError when it can't be written.
    """
    kind = FORMATS[target.suffix.lower()]
    options: dict[str, Any] = {"PNG": {"compress_level": 4}, "JPEG": {"quality": 95, "subsampling": 0}}.get(
        kind, {"lossless": True}
    )
    if params is not None:
        options |= {"pnginfo": _png_info(params)} if kind == "PNG" else {"exif": _exif(params)}
    write_whole(target, lambda file: image.save(file, kind, **options))


def check_target(target: Path) -> None:
    """Raise what would prevent `save` from writing a picture here; see `check_writable`."""
    if target.suffix.lower() not in FORMATS:
        message = f"{str(target)!r} is no name for a picture; end it in {', '.join(FORMATS)}."
        raise InvalidInput("suffix", message, name=str(target))
    check_writable(target)


def check_writable(target: Path) -> None:
    """Raise what would prevent writing this file, before minutes are spent; makes its folder where it lacks."""
    try:
        if target.is_dir():  # raises where the name is too long
            raise InvalidInput("folder", f"{str(target)!r} is a folder; add a file name to it.", name=str(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise storage_error(error, repr(str(target))) from error


def write_whole(target: Path, write: Callable[[Any], None]) -> None:
    """Let `write` fill a file that takes its name only once it is whole. Raises StorageError."""
    part = target.with_name(f".{secrets.token_hex(6)}.part")
    try:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("w+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
            _sync_folder(target.parent)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, repr(target.name)) from error


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":  # folders can't be opened there; the rename is journalled
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _png_info(params: dict[str, Any]) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    text = parameters_text(params)
    if text.isascii():
        info.add_text("parameters", text)
    else:
        info.add_itxt("parameters", text)
    info.add_itxt(CHUNK, json.dumps(params, ensure_ascii=False))
    return info


def _exif(params: dict[str, Any]) -> Image.Exif:
    exif = Image.Exif()
    text = parameters_text(params) + f"\n{CHUNK}: " + json.dumps(params, ensure_ascii=False)
    exif.get_ifd(ExifTags.IFD.Exif)[_USER_COMMENT] = _UNICODE + text.encode("utf-16-be")
    return exif


def read_params(file: Path) -> dict[str, Any] | None:
    """Return the JSON block of a result, or None when the file carries none that can be trusted to be one."""
    try:
        with Image.open(file, formats=("PNG", "JPEG", "WEBP")) as image:
            block = _block(image)
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    try:
        params = json.loads(block) if block else None
    except (ValueError, RecursionError):
        return None
    ours = (
        isinstance(params, dict) and params.get("app") == "RealCharacters" and isinstance(params.get("request"), dict)
    )
    return params if ours else None


def _block(image: Image.Image) -> str | None:
    text = image.info.get(CHUNK)
    if isinstance(text, str):
        return text
    comment = image.getexif().get_ifd(ExifTags.IFD.Exif).get(_USER_COMMENT)
    if not isinstance(comment, bytes) or not comment.startswith(_UNICODE):
        return None
    return comment[len(_UNICODE) :].decode("utf-16-be", "replace").partition(f"\n{CHUNK}: ")[2]


_KINDS: dict[str, Any] = {
    "prompt": str,
    "negative_prompt": str,
    "steps": int,
    "cfg": (int, float),
    "seed": int,
    "size": str,
    "long_edge": (int, type(None)),
    "tile": (int, type(None)),
    "loras": tuple,
    "preset": str,
    "stamp": bool,
}


def read_request(file: Path) -> EditRequest | None:
    """Return the settings that a result was made with; None when it has none, or ones of the wrong kinds."""
    params = read_params(file)
    if params is None:
        return None
    try:
        request = EditRequest.from_json(_elsewhere(params["request"]))
        values = vars(request)
        return request if all(isinstance(values[name], kind) for name, kind in _KINDS.items()) else None
    except (TypeError, KeyError, AttributeError):
        return None
