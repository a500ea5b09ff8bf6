"""Measures one row in a process of its own: reads its spec from standard input, writes its facts as the last line.

    python -m realchar.bench.child PARENT < spec.json

A row that fails gives its reason instead; the traceback goes to standard error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from realchar.bench.spec import RowSpec
from realchar.errors import RealCharError
from realchar.machine import GB, gpus, prepare_engine_process, read_ram


def measure(spec: RowSpec) -> dict[str, Any]:
    """Return the facts of a row. Imports torch; raises what measuring raises."""
    if spec.kind == "engine":
        from realchar.bench.engine_row import measure_engine

        return measure_engine(spec)
    if spec.kind == "together":
        from realchar.bench.together_row import measure_together

        return measure_together(spec)
    if spec.kind == "long":
        from realchar.bench.long_row import measure_long

        return measure_long(spec)
    if spec.kind == "attention":
        return {"attention": _attention(spec)}
    if spec.kind == "diffusers":
        from realchar.bench.diffusers_row import measure_diffusers

        return measure_diffusers(spec)
    if spec.kind == "vae":
        return {"vae": _vae(spec)}
    return _machine(spec.setting.device)


def _vae(spec: RowSpec) -> list[dict[str, Any]]:
    from realchar.bench.vae import measure_vae
    from realchar.engine.devices import compute_dtype, find_device

    device = find_device(spec.setting.device)
    folder = Path(spec.setting.base) / "vae"
    rows = measure_vae(folder, spec.setting.size, spec.tiles, device, compute_dtype(device))
    return [dataclasses.asdict(row) for row in rows]


def _attention(spec: RowSpec) -> dict[str, Any]:
    """Return what every attention backend does on the shape of the picture, and which `auto` takes."""
    from diffusers import QwenImageTransformer2DModel

    from realchar.engine.attention import Shape, choose, measure
    from realchar.engine.devices import compute_dtype, find_device
    from realchar.engine.pipeline import TOKENS_OF_TEXT

    device, (width, height) = find_device(spec.setting.device), spec.setting.size
    config = QwenImageTransformer2DModel.load_config(Path(spec.setting.base) / "transformer", local_files_only=True)
    tokens = TOKENS_OF_TEXT + 2 * width * height // 16**2
    shape = Shape(tokens, config["num_attention_heads"], config["attention_head_dim"])
    rows = measure(shape, device, compute_dtype(device))
    return {"tokens": tokens, "chosen": choose(rows), "backends": [dataclasses.asdict(row) for row in rows]}


def _machine(name: str) -> dict[str, Any]:
    """Return what the rows ran on."""
    import diffusers
    import torch
    import transformers

    from realchar.engine.devices import find_device

    device = find_device(name)
    cards, index = gpus(), device.index or 0
    on_gpu = device.type == "cuda"
    return {
        "device": str(device),
        "card": torch.cuda.get_device_name(device) if on_gpu else None,
        "card_gb": torch.cuda.get_device_properties(device).total_memory / GB if on_gpu else None,
        "driver": cards[index].driver if on_gpu and index < len(cards) else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "ram_gb": read_ram().total_gb,
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def facts(spec: RowSpec) -> dict[str, Any]:
    """Return the row's facts with `ok`, or the reason why there are none: the one place that catches everything."""
    try:
        return {"ok": True, "reason": "", **measure(spec)}
    except RealCharError as error:
        return {"ok": False, "reason": error.message}
    except Exception as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or ["no more is told"])[0]
        return {"ok": False, "reason": f"{type(error).__name__}: {first}"}


def _end_with(parent: int) -> None:
    """End this process when the one that reads its facts is gone, killed perhaps, and even before this one began."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(parent).wait()
    os._exit(3)


def main() -> None:
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), name="parent", daemon=True).start()
    prepare_engine_process()
    spec = RowSpec.from_json(sys.stdin.read())
    print(json.dumps(facts(spec)), flush=True)


if __name__ == "__main__":
    main()
