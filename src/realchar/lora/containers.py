"""LoRA files as containers: their header read whole, or what lies there instead, in words. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from realchar.headers import LENGTH_BYTES, NoHeader, Row, read_rows

MOST_HEADER_BYTES = 16 * 2**20  # a LoRA on every linear layer of the real base has one of 0.3 MB
MOST_TENSORS = 50_000

# What a file that is no safetensors begins with, and what it is then.
_BEGINNINGS = (
    (b"version https://git-lfs", "is a pointer to a file, not the file itself; fetch it with 'git lfs pull'"),
    (b"<", "is a web page, not a LoRA; download it again, signed in where the site asks for it"),
    (b"{", "is a text, not a LoRA; download it again"),
    (b"PK\x03\x04", "is a zip or a PyTorch file that was renamed; it is never opened, get it as .safetensors"),
    (b"\x80\x02}", "is a PyTorch file that was renamed; it is never opened, get it as .safetensors"),
    (b"\x80\x02\x8a", "is a PyTorch file that was renamed; it is never opened, get it as .safetensors"),
    (b"GGUF", "is a GGUF file, not a LoRA; get it as .safetensors"),
    (b"\x1f\x8b", "is compressed; unpack it first"),
    (b"7z\xbc\xaf", "is compressed; unpack it first"),
    (b"Rar!", "is compressed; unpack it first"),
)


class Refused(Exception):
    """A file that can't be used: a code, and the rest of a sentence that begins with the file's name."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def read(file: Path) -> tuple[Mapping[str, Row], Mapping[str, str]]:
    """Return a file's tensors by name and its metadata. Raises Refused."""
    if file.suffix.lower() != ".safetensors":
        raise Refused(
            "lora_layout",
            f"is a {file.suffix or 'file without a suffix'}, which is never opened; get it as .safetensors.",
        )
    try:
        rows, metadata = read_rows(file, MOST_HEADER_BYTES)
    except FileNotFoundError as error:
        raise Refused("lora_gone", "is not there; choose another version.") from error
    except OSError as error:
        raise Refused("lora_damaged", f"can't be read ({error.strerror or error}); check it.") from error
    except ValueError as error:
        instead = _instead(file) if isinstance(error, NoHeader) else ""
        raise Refused("lora_damaged", instead or f"can't be read ({error}); download it again.") from error
    if not rows:
        raise Refused("lora_damaged", "holds no tensors; download it again.")
    if len(rows) > MOST_TENSORS:
        raise Refused("lora_layout", f"holds {len(rows)} tensors, too many for a LoRA; choose another.")
    return rows, metadata


def _instead(file: Path) -> str:
    """Return what a file is that has no header. Only then: a good one may begin like anything."""
    try:
        with file.open("rb") as handle:
            head = handle.read(64)
    except OSError:
        return ""
    if not head.strip(b"\0"):
        return "is empty; download it again."
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if b"\0" in head[:LENGTH_BYTES] and text[:1] in (b"<", b"{"):
        return ""  # the length of a header that is cut off
    return next((f"{what}." for begin, what in _BEGINNINGS if text.startswith(begin)), "")
