"""The miniature base of the repository in variants, for tests of the engine: real classes, random weights."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

DEVICE = os.environ.get("TEST_DEVICE", "cpu")  # cuda: the engine's tests run on a graphics card, in bfloat16
DEMO = Path(__file__).resolve().parents[1] / "weights" / "demo"


def copy_base(target: Path, **transformer_config: object) -> Path:
    """Copy the embedded base, changing keys of its transformer's config."""
    shutil.copytree(DEMO, target)
    if not transformer_config:
        return target
    config = target / "transformer" / "config.json"
    data = json.loads(config.read_text(encoding="utf-8")) | transformer_config
    config.write_text(json.dumps(data), encoding="utf-8")
    return target
