"""Installed packages that do not work, for tests."""

from __future__ import annotations

from pathlib import Path


def broken_xformers(folder: Path) -> Path:
    """Write an xformers that is built for another PyTorch."""
    (folder / "xformers").mkdir(parents=True)
    (folder / "xformers" / "__init__.py").touch()
    (folder / "xformers" / "ops.py").write_text("raise ImportError('undefined symbol: x')")
    (folder / "xformers-9.8.dist-info").mkdir()
    (folder / "xformers-9.8.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: xformers\nVersion: 9.8\n")
    return folder
