"""What a conversion will use on this machine, and whether that can work: device, offload mode, budget, where weights wait."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any, Literal

from realchar import machine
from realchar.catalog import BaseInfo
from realchar.engine.memory import least_bytes
from realchar.engine.tiers import HostFacts, choose_tier, only
from realchar.errors import InvalidInput
from realchar.settings import Attention, Offload, Precision, Settings

State = Literal["ok", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `remedy` is empty where nothing needs to be done."""

    key: str
    state: State
    text: str
    remedy: str = ""


def check_attention(settings: Settings, found: dict[str, Any], error: str) -> Finding:
    """Say who will compute attention. `found`: of a card, `refused` backends with reasons and those `chosen` before."""
    wanted, remedy = settings.attention, "Set REALCHAR_ATTENTION=auto."
    if error:
        text = f"Attention backends can't be tried: {error}."
        return Finding("attention", "warn", text, "Set REALCHAR_ATTENTION=sdpa, and repair what is said about PyTorch.")
    on_cpu = settings.device == "cpu" or not found
    refused = dict.fromkeys(set(Attention) - {Attention.SDPA}, "it needs a graphics card")
    refused = refused if on_cpu else found["refused"]
    if wanted is not Attention.AUTO and refused.get(wanted):
        return Finding("attention", "bad", f"Attention {wanted.value!r} can't run here: {refused[wanted]}.", remedy)
    if on_cpu:
        return Finding("attention", "ok", "Attention: PyTorch's own, on the CPU.")
    usable = ", ".join(name for name, reason in refused.items() if not reason)
    taken = f"{wanted.value} is asked for"
    if wanted is Attention.AUTO:
        chosen = " and ".join(found["chosen"])
        taken = f"auto has taken {chosen}" if chosen else "auto measures them when a base is loaded first"
    return Finding("attention", "ok", f"Attention: {usable} run here; {taken}.")


def check_choice(settings: Settings, base: BaseInfo, *, usable: bool) -> Finding:
    """Say which device, dtype, base and offload mode a conversion will use; `usable`: PyTorch can compute on a card."""
    on_gpu = settings.device.startswith("cuda") or (settings.device == "auto" and usable)
    if on_gpu and not usable:
        text = f"Device {settings.device!r} was asked for, but PyTorch can't compute on a graphics card here."
        return Finding("choice", "bad", text, "Leave REALCHAR_DEVICE at auto, or repair what is said about PyTorch.")
    if not on_gpu and settings.device not in ("auto", "cpu"):
        text = f"Device {settings.device!r} is not usable here."
        return Finding("choice", "bad", text, "Set REALCHAR_DEVICE to auto, cpu or cuda.")
    try:
        mode = settings.offload.resolved(on_gpu=on_gpu)
    except InvalidInput as error:
        return Finding("choice", "bad", error.message, "Set REALCHAR_OFFLOAD=auto.")
    if settings.precision is not Precision.BF16 and mode is not Offload.STREAM:
        text = f"Precision {settings.precision} is made while blocks are streamed, but the offload mode is {mode}."
        return Finding("choice", "bad", text, "Set REALCHAR_OFFLOAD=stream, or REALCHAR_PRECISION=bf16.")
    memory = machine.read_memory(settings.device if on_gpu else "cpu")
    edge = base.long_edge
    need = least_bytes(base, mode, edge, edge, on_gpu=on_gpu, precision=settings.precision) / machine.GB
    place, kind, dtype = (memory.name, "VRAM", "bfloat16") if on_gpu else ("CPU", "RAM", "float32")
    reasons = {True: "PyTorch can use it", False: "PyTorch can't use a graphics card here"}
    why = reasons[on_gpu] if settings.device == "auto" else f"REALCHAR_DEVICE is {settings.device!r}"
    text = f"{base.title} on the {place} in {dtype}, because {why}; offload mode {mode}"
    text += f", {_wait(settings, base)}" if on_gpu and mode is Offload.STREAM else ""
    text += f"; it needs {need:.1f} GB of {kind}"
    if on_gpu and settings.vram:
        text += f" of a budget of {settings.vram:g}"
    return _judged(text, need, settings, memory, on_gpu=on_gpu, streamed=mode is Offload.STREAM)


def _judged(
    text: str, need: float, settings: Settings, memory: machine.MemoryReading, *, on_gpu: bool, streamed: bool
) -> Finding:
    """Return the finding for what needs `need` GB."""
    if on_gpu and 0 < settings.vram < need:
        remedy = "Raise REALCHAR_VRAM, or unset it." if streamed else "Set REALCHAR_OFFLOAD=stream."
        return Finding("choice", "bad", f"{text}, which is too small.", remedy)
    if need > memory.total_gb:
        remedy = "Choose a smaller base" + (", or the CPU with REALCHAR_DEVICE=cpu." if on_gpu else ".")
        if not streamed:
            remedy = "Set REALCHAR_OFFLOAD=stream."
        return Finding("choice", "bad", f"{text}, but there are only {memory.total_gb:.1f}.", remedy)
    free = memory.total_gb - memory.used_gb
    if need > free:
        return Finding("choice", "warn", f"{text}, but only {free:.1f} are free now.", "Close other programs.")
    return Finding("choice", "ok", f"{text}.")


def _wait(settings: Settings, base: BaseInfo) -> str:
    """Say where streamed weights will wait, as far as can be told before the driver is asked."""
    ram = machine.read_ram()
    free, refused = ram.total_gb - ram.used_gb, only(settings.host_memory)
    choice = choose_tier(HostFacts(True, platform.system(), free, base.weight_bytes / machine.GB, refused))
    return f"weights wait {choice.tier} ({choice.reason})"
