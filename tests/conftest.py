"""All state of every test goes to a temporary folder, and nothing is ever asked of the network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ[name] = "1"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for key in list(os.environ):
        if key.startswith("REALCHAR_"):
            monkeypatch.delenv(key)
    monkeypatch.setenv("REALCHAR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("REALCHAR_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("REALCHAR_BASE", str(Path(__file__).resolve().parents[1] / "weights" / "demo"))
    (tmp_path / "weights").mkdir()


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Let torch compute on two threads, as on the smallest machine that is supported."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
