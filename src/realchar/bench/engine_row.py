"""A row of this engine: a whole conversion with CFG, one without, and with LoRA versions attached."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from realchar.bench.peaks import ProcessMemory, own_ram_bytes, peak_ram_bytes
from realchar.bench.recorder import Recorder
from realchar.bench.spec import RowSpec
from realchar.bench.steps import Clock, plan_json, timed_run
from realchar.catalog import BaseInfo, load_base
from realchar.engine.blocks import StreamedBlocks
from realchar.engine.pipeline import Engine
from realchar.errors import RealCharError
from realchar.machine import GB
from realchar.settings import HostMemory, Offload


def measure_engine(spec: RowSpec) -> dict[str, Any]:
    """Return the row's facts; writes picture and latents into the work folder. Raises RealCharError."""
    setting, memory = spec.setting, ProcessMemory(spec.setting.device)
    began = time.perf_counter()
    engine = load_engine(load_base(setting.base), str(memory.device), spec)
    memory.sync()
    load_s = time.perf_counter() - began
    recorder = Recorder(engine.family)
    cfg = timed_run(engine, setting.size, setting.steps, memory)
    sha256 = _save_picture(cfg, Path(setting.work), spec.slug)
    recorder.save(Path(setting.work), spec.slug)
    plain = timed_run(engine, setting.size, setting.steps, memory, cfg=1.0)
    row = {
        "s_per_step": {"cfg": cfg.step_s, "no_cfg": plain.step_s},
        "load_s": load_s,
        "to_first_step_s": cfg.first_step_began - began,
        "first_step_s": cfg.first_step_s,
        "job_s": cfg.ended - cfg.began,
        "peak_gb": memory.peak_gb(),
        "context_gb": memory.context_gb(),
        "stages_gb": cfg.peaks,
        "ram_peak_gb": peak_ram_bytes() / GB,
        "ram_own_gb": None if (own := own_ram_bytes()) is None else own / GB,
        "plan": plan_json(cfg.plan),
        "degraded": cfg.degraded,
        "weights_wait": _weights_wait(engine),
        "sha256": sha256,
    }
    if setting.loras and spec.host_memory == "auto":
        row["lora"] = _with_lora(engine, spec, memory, cfg.step_s)
    return row


def load_engine(base: BaseInfo, device: str, spec: RowSpec) -> Engine:
    """Load the engine as the app would; streaming without a budget keeps no block resident, the least that it can take."""
    mode = Offload(spec.mode)
    if spec.budget_gb is None:
        return Engine.load(base, device, mode, resident_blocks=0, speed=spec.speed)
    return Engine.load(
        base,
        device,
        mode,
        budget=int(spec.budget_gb * GB),
        speed=spec.speed,
        host_memory=HostMemory(spec.host_memory),
    )


def _with_lora(engine: Engine, spec: RowSpec, memory: ProcessMemory, step_s: float) -> dict[str, Any]:
    """Measure steps with the first LoRA, then the switch to the second, up to where the next step could begin.

    A failure here is told in the row and does not take away what was measured before.
    """
    setting = spec.setting
    first, second = setting.loras
    memory.restart()
    try:
        attached = timed_run(engine, setting.size, setting.steps, memory, lora=first)
        switched = timed_run(engine, setting.size, setting.steps, memory, lora=second, first_step_only=True)
    except RealCharError as error:
        return {"ok": False, "reason": error.message}
    loading = switched.stages["encode_text"] - switched.stages["load"]
    arriving = max(0.0, switched.first_step_s - attached.step_s)  # what the first step waits for longer than others
    return {
        "ok": True,
        "s_per_step": attached.step_s,
        "ratio": attached.step_s / step_s,
        "switch_s": loading + arriving,
        "switch_load_s": loading,
        "peak_gb": memory.peak_gb(),
    }


def _save_picture(clock: Clock, work: Path, slug: str) -> str:
    """Write the picture as numbers and return the SHA-256 of its pixels."""
    assert clock.image is not None
    pixels = np.asarray(clock.image)
    np.save(work / f"{slug}.picture.npy", pixels)
    return hashlib.sha256(pixels.tobytes()).hexdigest()


def _weights_wait(engine: Engine) -> dict[str, str] | None:
    """Return where streamed weights wait on the host, and why there."""
    blocks = engine.family.blocks
    if not isinstance(blocks, StreamedBlocks):
        return None
    return {"tier": blocks.choice.tier, "reason": blocks.choice.reason}
