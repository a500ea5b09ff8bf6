"""A complete base with random weights, written from configs alone: speed and memory don't depend on what weights say."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from realchar.bench.full_size import TEXT, TRANSFORMER, VISION
from realchar.bench.shards import ONE, RandomNumbers, Shapes, num_bytes, write_shards
from realchar.catalog import PIPELINE
from realchar.errors import InvalidInput, StorageError, storage_error
from realchar.headers import MODELS
from realchar.machine import GB, disk_free

FULL = "full"
COPIED = ("tokenizer", "processor", "scheduler")
VERSION = 1  # of what is written for the same configs; another one makes kept bases useless
MARK = "random.json"  # written last: a base that has it is complete
SPARE_BYTES = GB  # of disk space, for headers, LoRA files and results


@dataclass(frozen=True)
class Plan:
    """A base to be written: configs of its models by folder, and where the other folders are copied from."""

    configs: dict[str, dict[str, Any]]
    sources: dict[str, Path]

    @property
    def digest(self) -> str:
        copied = {name: sorted(file.name for file in folder.iterdir()) for name, folder in self.sources.items()}
        text = json.dumps([VERSION, self.configs, copied], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def plan_base(config: str, demo: Path, layers: int | None = None) -> Plan:
    """Read the configs of a folder, or of the full size for the word `full`.

    What a folder lacks besides its models' configs is taken from the demo base. `layers` cuts transformer and text
    encoder. Raises InvalidInput.
    """
    folder = demo if config == FULL else Path(config)
    sources = {name: place for name in COPIED if (place := _first_filled(folder / name, demo / name))}
    if missing := [name for name in COPIED if name not in sources]:
        raise InvalidInput("random_weights", f"{str(folder)!r} has no {missing[0]!r}; run from a checkout, which has.")
    configs = {name: _config(folder, name) for name in MODELS}
    text = configs["text_encoder"]
    if config == FULL:
        configs["transformer"] = TRANSFORMER
        configs["vae"] = {"_class_name": "AutoencoderKLQwenImage"}  # whose defaults are the full size
        text = {"text_config": TEXT, "vision_config": VISION}
    if sources["tokenizer"] == demo / "tokenizer":
        text |= {key: value for key, value in _config(demo, "text_encoder").items() if key.endswith("token_id")}
    configs["text_encoder"] = text | {"tie_word_embeddings": True}  # no head is written, for none is ever used
    return Plan(configs if layers is None else _cut(configs, layers), sources)


def write_base(plan: Plan, scratch: Path) -> Path:
    """Write the base into `scratch`, unless it is there already, and return its folder.

    Raises StorageError before anything is written where the disk is too small, or when it turns out to be.
    """
    target = scratch / f"random-{plan.digest}"
    if (target / MARK).exists():
        return target
    models = {name: _on_meta(name, plan.configs[name]) for name in MODELS}
    shapes = {name: _shapes(name, model) for name, model in models.items()}
    needed, free = (sum(map(num_bytes, shapes.values())) + SPARE_BYTES) / GB, disk_free(scratch)
    if free < needed:
        raise StorageError(
            "disk",
            f"Random weights need {needed:.1f} GB, but only {free:.1f} GB are free at {str(scratch)!r}; give a folder "
            "on a larger disk with --scratch.",
        )
    partial = scratch / f"{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(partial, plan, models, shapes)
        partial.rename(target)
    except OSError as error:
        raise storage_error(error, repr(str(target))) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _first_filled(*folders: Path) -> Path | None:
    return next((folder for folder in folders if folder.is_dir() and any(folder.iterdir())), None)


def _config(folder: Path, name: str) -> dict[str, Any]:
    file = folder / name / "config.json"
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{str(file)!r} can't be read ({error}); give a diffusers folder, or the word full."
        raise InvalidInput("random_weights", message) from error
    return config


def _cut(configs: dict[str, dict[str, Any]], layers: int) -> dict[str, dict[str, Any]]:
    if layers < 1:
        raise InvalidInput("layers", f"{layers} layers are not possible; choose 1 or more.", value=layers)
    text = configs["text_encoder"]["text_config"] | {"num_hidden_layers": layers}
    if "layer_types" in text:
        text["layer_types"] = text["layer_types"][:layers]
    return configs | {
        "transformer": configs["transformer"] | {"num_layers": layers},
        "text_encoder": configs["text_encoder"] | {"text_config": text},
    }


def _on_meta(name: str, config: dict[str, Any]) -> Any:
    with torch.device("meta"):
        if name == "text_encoder":
            return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig.from_dict(config))
        return (QwenImageTransformer2DModel if name == "transformer" else AutoencoderKLQwenImage).from_config(config)


def _shapes(name: str, model: Any) -> Shapes:
    """Return the shapes of a model's weights by their names on disk."""
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items() if key != "lm_head.weight"}
    if name == "text_encoder":  # published bases keep the names of older versions of the class
        renamed = (("model.language_model.", "model."), ("model.visual.", "visual."))
        for new, old in renamed:
            shapes = {key.replace(new, old, 1) if key.startswith(new) else key: s for key, s in shapes.items()}
    return shapes


def _write(folder: Path, plan: Plan, models: dict[str, Any], shapes: dict[str, Shapes]) -> None:
    numbers = RandomNumbers(max(sum(map(prod, component.values())) for component in shapes.values()))
    for name, source in plan.sources.items():
        shutil.copytree(source, folder / name)
    for name, model in models.items():
        (folder / name).mkdir()
        stem = "model" if name == "text_encoder" else "diffusion_pytorch_model"
        write_shards(folder / name, stem, shapes[name], numbers, _constant)
        config = json.loads(model.config.to_json_string()) if name == "text_encoder" else dict(model.config)
        (folder / name / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    own = {"title": "Random weights"}
    for name, content in (("model_index.json", {"_class_name": PIPELINE}), ("realchar.json", own)):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / MARK).write_text(json.dumps({"digest": plan.digest}), encoding="utf-8")


def _constant(name: str, shape: tuple[int, ...]) -> int | None:
    """Return zero for a bias and one for a norm's weight, as in a new model; nothing for what is drawn."""
    if name.endswith(".bias"):
        return 0
    return ONE if len(shape) == 1 or name.endswith(".gamma") else None
