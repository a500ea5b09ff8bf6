"""Where a component's weights lie on disk: mapped safetensors, one file or sharded, read lazily by tensor name."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from realchar.errors import ModelError


class WeightSource:
    """The pristine weights of one component folder; the files stay mapped as long as this object lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[Path, Any] = {}

    @cached_property
    def files(self) -> dict[str, Path]:
        """Map every tensor name to its file. Raises ModelError when there are no readable safetensors."""
        try:
            for index in sorted(self.folder.glob("*.safetensors.index.json")):
                names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                return {name: self.folder / file for name, file in names.items()}
            found = sorted(self.folder.glob("*.safetensors"))
            return {name: file for file in found for name in self._handle(file).keys()}  # noqa: SIM118
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise self._damaged(error) from error

    def tensor(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        """Return a fresh copy of a tensor as stored."""
        try:
            handle = self._handle(self.files[name])
            tensor: Tensor = handle.get_tensor(name)
        except (OSError, KeyError, SafetensorError) as error:
            raise self._damaged(error) from error
        return tensor.to(device)

    def _handle(self, file: Path) -> Any:
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt")
        return self._open[file]

    def _damaged(self, error: Exception) -> ModelError:
        return ModelError(
            "weights_damaged",
            f"The weights in {str(self.folder)!r} can't be read ({error}); copy the folder again.",
            path=str(self.folder),
        )
