"""A row of diffusers' own ways to hold the same transformer: two forwards a CFG step, on the inputs of our own first step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor

from realchar.bench.peaks import ProcessMemory, own_ram_bytes, peak_ram_bytes
from realchar.bench.recorder import STEP
from realchar.bench.spec import WARM_UP, RowSpec
from realchar.engine.devices import compute_dtype
from realchar.errors import InvalidInput
from realchar.machine import GB

CPU = torch.device("cpu")


def measure_diffusers(spec: RowSpec) -> dict[str, Any]:
    """Return the row's facts: of the transformer alone, text encoder and VAE are not loaded. Raises InvalidInput."""
    setting, memory = spec.setting, ProcessMemory(spec.setting.device)
    if spec.mode != "diffusers" and not memory.on_gpu:
        message = f"{spec.mode} moves weights to a graphics card, and there is none here; run it on a machine with one."
        raise InvalidInput("device", message)
    step = Path(setting.work) / STEP
    if not step.exists():
        message = "No row of the engine has left a step's inputs; choose resident or stream too."
        raise InvalidInput("rows", message)
    recorded = torch.load(step, weights_only=True)
    inputs = [_inputs(*both, memory.device) for both in zip(recorded["inputs"], recorded["shapes"], strict=True)]
    began = time.perf_counter()
    transformer = QwenImageTransformer2DModel.from_pretrained(
        Path(setting.base) / "transformer", torch_dtype=compute_dtype(memory.device), local_files_only=True
    )
    transformer.eval().requires_grad_(False)
    load_s = time.perf_counter() - began
    HOLD[spec.mode](transformer, memory.device)
    memory.sync()
    setup_s = time.perf_counter() - began - load_s
    velocities, cfg_s = _timed(transformer, inputs, setting.steps, memory)
    no_cfg_s = _timed(transformer, inputs[:1], setting.steps, memory)[1]
    return {
        "s_per_step": {"cfg": cfg_s, "no_cfg": no_cfg_s},
        "load_s": load_s,
        "setup_s": setup_s,
        "peak_gb": memory.peak_gb(),
        "context_gb": memory.context_gb(),
        "ram_peak_gb": peak_ram_bytes() / GB,
        "ram_own_gb": None if (own := own_ram_bytes()) is None else own / GB,
        "velocities": _compared(velocities, recorded["velocities"]),
    }


def _inputs(branch: dict[str, Tensor], shapes: list[list[int]], device: torch.device) -> dict[str, Any]:
    tensors = {name: tensor.to(device) for name, tensor in branch.items()}
    return {
        "hidden_states": torch.cat([tensors["latents"], tensors["reference"]], dim=1),
        "encoder_hidden_states": tensors["prompt_embeds"],
        "timestep": tensors["timestep"],
        "img_shapes": [[tuple(shape) for shape in shapes]],
        "return_dict": False,
    }


@torch.no_grad()
def _timed(
    transformer: Any, inputs: list[dict[str, Any]], steps: int, memory: ProcessMemory
) -> tuple[list[Tensor], float]:
    """Return the velocities of the last step, one a forward, and the median of the steps after the warm-up."""
    seconds = []
    for _ in range(WARM_UP + steps):
        began = time.perf_counter()
        velocities = [transformer(**each)[0] for each in inputs]
        memory.sync()
        seconds.append(time.perf_counter() - began)
    return velocities, median(seconds[WARM_UP:])


def _compared(ours: list[Tensor], recorded: list[Tensor]) -> dict[str, Any]:
    """Compare with the engine's velocities, which are those of the noise tokens only."""
    pairs = [(mine[:, : kept.shape[1]].cpu(), kept) for mine, kept in zip(ours, recorded, strict=True)]
    differences = [mine.double() - kept.double() for mine, kept in pairs]
    relative = (each.norm() / kept.double().norm() for each, (_, kept) in zip(differences, pairs, strict=True))
    return {
        "equal": all(torch.equal(mine, kept) for mine, kept in pairs),
        "max_difference": max(float(each.abs().max()) for each in differences),
        "relative": max(map(float, relative)),
    }


# ---- how the weights are held


def _all_there(transformer: Any, device: torch.device) -> None:
    transformer.to(device)


def _group(level: str, **options: Any) -> Callable[[Any, torch.device], None]:
    def hold(transformer: Any, device: torch.device) -> None:
        from diffusers.hooks import apply_group_offloading

        apply_group_offloading(
            transformer,
            onload_device=device,
            offload_device=CPU,
            offload_type=level,
            use_stream=True,
            record_stream=True,
            **options,
        )

    return hold


def _sequential(transformer: Any, device: torch.device) -> None:
    from accelerate import cpu_offload

    cpu_offload(transformer, device, offload_buffers=True)


HOLD: dict[str, Callable[[Any, torch.device], None]] = {
    "diffusers": _all_there,
    "group-block": _group("block_level", num_blocks_per_group=1),
    "group-leaf": _group("leaf_level"),
    "sequential": _sequential,
}
