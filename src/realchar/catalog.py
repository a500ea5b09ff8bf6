"""The base on this disk, a diffusers folder, and whether files are what they should be. Reads headers only."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from realchar.errors import ModelError
from realchar.headers import MODELS
from realchar.lora.target import target_of

COMPONENTS = (*MODELS, "tokenizer", "processor", "scheduler")
PIPELINE = "QwenImageEditPlusPipeline"
MOST_HASHES = 1000


@dataclass(frozen=True)
class BaseInfo:
    """A base on disk. `long_edge` (pixels) and `native_area` (pixels²) are its size limits, `width` the transformer's."""

    path: Path
    name: str
    title: str
    demo: bool
    notice: str
    long_edge: int
    native_area: int
    work_edge: int | None  # pixels; smaller pictures are enlarged to it while the model works on them
    weight_bytes: int  # of all components, as stored
    width: int
    vae_width: int  # channels of the VAE's finest level
    fingerprint: str  # of configs and file sizes: names the base in a result without reading 50 GB
    # Rows of R, G, B for each latent channel and a one; where there is none, it is fitted on each job.
    preview: tuple[tuple[float, float, float], ...] = ()


def load_base(folder: Path | str) -> BaseInfo:
    """Read a diffusers folder's configs.

    `realchar.json` beside `model_index.json` may narrow the size limits and hold a preview matrix.
    """
    path = Path(folder)
    index = _read_json(path / "model_index.json", path)
    if index.get("_class_name") != PIPELINE:
        raise ModelError(
            "base_kind",
            f"Base {str(path)!r} is a {index.get('_class_name')!r}, but a {PIPELINE!r} folder is needed.",
            path=str(path),
        )
    missing = [name for name in COMPONENTS if not (path / name).is_dir() or not any((path / name).iterdir())]
    if missing:
        raise ModelError(
            "base_incomplete",
            f"Base {str(path)!r} lacks {', '.join(missing)}; copy the folder again.",
            path=str(path),
            missing=missing,
        )
    config = _read_json(path / "transformer" / "config.json", path)
    vae = _read_json(path / "vae" / "config.json", path)
    own = _read_json(path / "realchar.json", path) if (path / "realchar.json").exists() else {}
    files = sorted(file for name in COMPONENTS for file in (path / name).iterdir() if file.is_file())
    try:
        width, vae_width = target_of(config).width, int(vae["base_dim"])
        preview = tuple((float(r), float(g), float(b)) for r, g, b in own.get("preview", ()))
        work_edge = int(own["work_edge"]) if "work_edge" in own else None
        long_edge, native_area = int(own.get("long_edge", 1024)), int(own.get("native_area", 1024 * 1024))
    except (KeyError, TypeError, ValueError) as error:
        message = f"Base {str(path)!r} has a config with a wrong or missing value ({error}); copy it again."
        raise ModelError("base_damaged", message) from error
    return BaseInfo(
        path=path,
        name=path.name,
        title=str(own.get("title", path.name)),
        demo=bool(own.get("demo", False)),
        notice=str(own.get("notice", "")),
        long_edge=long_edge,
        native_area=native_area,
        work_edge=work_edge,
        weight_bytes=sum(file.stat().st_size for file in files if file.suffix == ".safetensors"),
        width=width,
        vae_width=vae_width,
        fingerprint=_fingerprint(path, files),
        preview=preview,
    )


def _read_json(file: Path, base: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            "base_missing",
            f"No base at {str(base)!r}: {file.relative_to(base).as_posix()} is not there; give the path of a diffusers "
            "folder with --base.",
            path=str(base),
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError("base_damaged", f"{str(file)!r} can't be read ({error}); copy the base again.") from error
    if not isinstance(data, dict):
        raise ModelError("base_damaged", f"{str(file)!r} is not a JSON object; copy the base again.")
    return data


def _fingerprint(base: Path, files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(base).as_posix()}:{file.stat().st_size}\n".encode())
        if file.name == "config.json":
            digest.update(file.read_bytes())
        elif (
            file.suffix == ".safetensors"
        ):  # the header alone tells bases of one architecture apart badly, so add a page
            with file.open("rb") as handle:
                digest.update(handle.read(4096))
                handle.seek(-min(4096, file.stat().st_size), os.SEEK_END)
                digest.update(handle.read(4096))
    return digest.hexdigest()[:16]


def file_sha256(path: Path) -> str:
    """Return the hash of a file; read again only when its time or size has changed."""
    return opened_sha256(path.open("rb"))


def opened_sha256(file: BufferedReader) -> str:
    """Return the hash of a file that was opened, whatever took its name since, and close it; `changed` where somebody
    wrote to it meanwhile.
    """
    with file:
        before = _stamp(file)
        known = _hashes.get(before)
        if known is None:
            known = hashlib.file_digest(file, "sha256").hexdigest()
            if _stamp(file) != before:
                return "changed"
            if len(_hashes) >= MOST_HASHES:
                _hashes.clear()
            _hashes[before] = known
        return known


_Stamp = tuple[int, int, int, int]
_hashes: dict[_Stamp, str] = {}


def _stamp(file: BufferedReader) -> _Stamp:
    stat = os.fstat(file.fileno())
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def damaged_files(folder: Path) -> list[str] | None:
    """Return the files that differ from `manifest.json` in a folder, by SHA-256; None where it has no such manifest."""
    try:
        files = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
        expected = {str(name): str(facts["sha256"]) for name, facts in files.items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ["manifest.json"]
    return [name for name, sha256 in sorted(expected.items()) if not _is_file_of(folder / name, sha256)]


def _is_file_of(path: Path, sha256: str) -> bool:
    try:
        return file_sha256(path) == sha256
    except OSError:
        return False
