"""The bench: prepares what is measured, runs its rows one after another, and puts their facts into one report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from realchar.bench.lora_file import write_lora
from realchar.bench.processes import run_row
from realchar.bench.spec import (
    BUDGETS,
    DIFFUSERS,
    ENGINE,
    LONG_SIZE,
    LONG_STEPS,
    ROWS,
    SPEEDS,
    SWITCH_EVERY,
    TIERS,
    WARM_UP,
    RowSpec,
    Setting,
)
from realchar.catalog import BaseInfo, load_base
from realchar.engine.memory import MOST_TOGETHER
from realchar.errors import InvalidInput, ModelError
from realchar.machine import GB, prepare_engine_process
from realchar.presets import MAX_STEPS
from realchar.settings import MOST_VRAM, Attention, Offload, project_root

SCHEMA = 1  # of the report; docs/bench.md describes it
SIDE_MULTIPLE = 32  # pixels
TILE_SIDES = (8, 4096)  # pixels; a latent is 8
MOST_RANK, MOST_S = 4096, 10**6
FEWEST_JOBS, MOST_JOBS = 8, 10**5  # of a long run: it is told by quarters
TINY = 1e-12  # in place of the norm of nothing


@dataclass(frozen=True)
class Options:
    """What is asked. budgets: GB; None: the usual ones on a card, one row without on the CPU."""

    base: str = ""
    random_weights: str | None = None
    layers: int | None = None
    scratch: Path | None = None
    size: tuple[int, int] = (1024, 1024)
    steps: int = 3
    rows: tuple[str, ...] = ROWS
    budgets: tuple[float, ...] | None = None
    lora_rank: int = 32
    together: int = 4
    jobs: int = 100
    switch_every: int = SWITCH_EVERY
    attention: Attention = Attention.AUTO
    vae_sizes: tuple[tuple[int, int], ...] = ()
    vae_tiles: tuple[int, ...] = (512, 256)
    device: str = "auto"
    row_timeout_s: float = 1800.0
    say: Callable[[str], None] = field(default=lambda _text: None, compare=False)
    keep: Callable[[dict[str, Any]], None] = field(default=lambda _report: None, compare=False)  # after each row

    def __post_init__(self) -> None:
        if "lora" in self.rows and not {"resident", "stream", *SPEEDS} & set(self.rows):
            raise InvalidInput("rows", "lora is measured within the engine's rows; choose resident or stream too.")
        for width, height in (self.size, *self.vae_sizes):
            if min(width, height) < SIDE_MULTIPLE or width % SIDE_MULTIPLE or height % SIDE_MULTIPLE:
                message = (
                    f"{width}x{height} is no size for the bench; choose sides that are multiples of {SIDE_MULTIPLE}."
                )
                raise InvalidInput("size", message)
        given: list[tuple[str, float, float, float]] = [
            ("steps", self.steps, 1, MAX_STEPS - WARM_UP),
            ("lora-rank", self.lora_rank, 1, MOST_RANK),
            ("together", self.together, 2, MOST_TOGETHER),
            ("jobs", self.jobs, FEWEST_JOBS, MOST_JOBS),
            ("switch-every", self.switch_every, 1, MOST_JOBS),
        ]
        given += [
            ("row-timeout", self.row_timeout_s, 1, MOST_S),
            *(("vae-tiles", side, *TILE_SIDES) for side in self.vae_tiles),
        ]
        given += [("budgets", budget, 0.1, MOST_VRAM) for budget in self.budgets or ()]
        for name, value, low, high in given:
            if not low <= value <= high:  # also where it is no number
                message = f"--{name} is {value:g}; choose a value from {low:g} to {high:g}."
                raise InvalidInput(name, message, value=value)


def run_bench(options: Options) -> dict[str, Any]:
    """Measure the rows and return the report. Raises RealCharError for what concerns all of them."""
    with tempfile.TemporaryDirectory(prefix="realchar-bench-", dir=_made(options.scratch)) as own:
        base = load_base(_base(options, options.scratch or Path(own)))
        work = Path(own, "work")
        work.mkdir()
        loras: tuple[str, ...] = ()
        if {"lora", "long"} & set(options.rows):
            files = (write_lora(work / f"lora-{i}.safetensors", base.path, options.lora_rank, seed=i) for i in (1, 2))
            loras = tuple(map(str, files))
        setting = Setting(str(base.path), options.device, options.size, options.steps, str(work), loras)
        machine = run_row(RowSpec("machine", "machine", setting), options.row_timeout_s)
        if not machine.pop("ok"):
            raise ModelError("bench", f"This machine can't run the bench: {machine['reason']}")
        machine.pop("reason")
        rows: list[dict[str, Any]] = []
        report: dict[str, Any] = {}
        for spec in specs(options, setting, on_gpu=machine["card"] is not None):
            rows.append(_row(spec, options))
            report = _report(options, base, machine, rows) | {"reference": _compare(rows, work)}
            options.keep(report)  # so that a bench that is stopped has not measured in vain
        return report


def _made(folder: Path | None) -> Path | None:
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"{str(folder)!r} can't be made ({error.strerror}); give another folder with --scratch."
            raise InvalidInput("scratch", message) from error
    return folder


def _base(options: Options, scratch: Path) -> Path:
    if options.random_weights is None:
        if options.layers is not None:
            raise InvalidInput("layers", f"--layers {options.layers} cuts random weights; add --random-weights.")
        return Path(options.base)
    prepare_engine_process()
    from realchar.bench.random_weights import plan_base, write_base  # imports torch

    plan = plan_base(options.random_weights, project_root() / "weights" / "demo", options.layers)
    options.say(f"Random weights for {options.random_weights!r} …")
    return write_base(plan, scratch)


def specs(options: Options, setting: Setting, *, on_gpu: bool) -> Iterator[RowSpec]:
    """Yield the rows in the order in which they run: the reference first; the engine's with the attention asked for."""
    for spec in _specs(options, setting, on_gpu=on_gpu):
        yield replace(spec, speed=replace(spec.speed, attention=options.attention))


def _specs(options: Options, setting: Setting, *, on_gpu: bool) -> Iterator[RowSpec]:
    usual = BUDGETS if on_gpu else ()
    budgets: list[float | None] = [*sorted(usual if options.budgets is None else options.budgets)] or [None]
    if "resident" in options.rows:
        yield RowSpec("resident", "engine", setting, Offload.RESIDENT)
    if "stream" in options.rows:
        for budget in budgets:
            yield RowSpec(_streamed(budget), "engine", setting, Offload.STREAM, budget)
    for way, speed in SPEEDS.items():
        if way in options.rows:
            for budget in dict.fromkeys((budgets[0], budgets[-1])):
                yield RowSpec(f"{_streamed(budget)} {way}", "engine", setting, Offload.STREAM, budget, speed=speed)
    for name, offload in ENGINE.items():
        if name in options.rows:
            yield RowSpec(name, "engine", setting, offload)
    for tier in TIERS:
        if tier in options.rows and on_gpu:
            name = f"{_streamed(budgets[0])} {tier}"
            yield RowSpec(name, "engine", setting, Offload.STREAM, budgets[0], host_memory=tier)
    if "together" in options.rows:
        name = f"{_streamed(budgets[0])} {options.together} together"
        yield RowSpec(name, "together", setting, Offload.STREAM, budgets[0], jobs=options.together)
    if "long" in options.rows:
        own = replace(setting, size=LONG_SIZE, steps=LONG_STEPS)
        name = f"{_streamed(budgets[0])} {options.jobs} jobs"
        every = options.switch_every
        yield RowSpec(name, "long", own, Offload.STREAM, budgets[0], jobs=options.jobs, switch_every=every)
    if "attention" in options.rows:
        yield RowSpec("attention", "attention", setting)
    for mode in DIFFUSERS:
        if mode in options.rows:
            yield RowSpec(mode, "diffusers", setting, mode)
    if "vae" in options.rows:
        for width, height in options.vae_sizes or (options.size,):
            own = Setting(setting.base, setting.device, (width, height), setting.steps, setting.work)
            yield RowSpec(f"vae {width}x{height}", "vae", own, tiles=options.vae_tiles)


def _streamed(budget: float | None) -> str:
    return "stream" if budget is None else f"stream {budget:g} GB"


def _row(spec: RowSpec, options: Options) -> dict[str, Any]:
    options.say(f"{spec.name} …")
    facts = run_row(spec, options.row_timeout_s)
    head: dict[str, Any] = {"name": spec.name, "kind": spec.kind, "mode": spec.mode, "budget_gb": spec.budget_gb}
    if spec.kind == "vae":
        head["size"] = list(spec.setting.size)
    return head | facts


def _compare(rows: list[dict[str, Any]], work: Path) -> str | None:
    """Add to every row its ratios to the reference, and whether picture and latents equal its own; return its name.

    The reference is the first row of the engine that came through: the resident one, unless it did not fit.
    """
    reference = next((row for row in rows if row["kind"] == "engine" and row["ok"]), None)
    if reference is None:
        return None
    for row in (row for row in rows if row["ok"]):
        if "s_per_step" in row:
            row["ratio"] = {way: row["s_per_step"][way] / s for way, s in reference["s_per_step"].items()}
        if row["kind"] == "engine":
            row["picture"] = _difference(work, "picture", row["name"], reference["name"])
            row["latents"] = _difference(work, "latents", row["name"], reference["name"])
    return str(reference["name"])


def _difference(work: Path, what: str, name: str, reference: str) -> dict[str, Any]:
    """Compare two rows' results: pixels 0…255, or latents as the transformer gives them."""
    mine, kept = (np.load(work / f"{each.replace(' ', '-')}.{what}.npy") for each in (name, reference))
    difference = mine.astype(np.float64) - kept
    norm = float(np.linalg.norm(kept.astype(np.float64)))
    return {
        "equal": bool(np.array_equal(mine, kept)),
        "max_difference": float(np.abs(difference).max()),
        "relative": float(np.linalg.norm(difference)) / max(norm, TINY),
    }


def _report(options: Options, base: BaseInfo, machine: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "machine": machine,
        "base": {
            "title": base.title,
            "fingerprint": base.fingerprint,
            "weight_gb": base.weight_bytes / GB,
            "random": options.random_weights,
            "layers": options.layers,
        },
        "settings": {
            "size": list(options.size),
            "steps": options.steps,
            "warm_up": WARM_UP,
            "lora_rank": options.lora_rank if "lora" in options.rows else None,
            "attention": options.attention.value,
        },
        "rows": rows,
        "notes": list(_notes(machine, rows)),
    }


def _notes(machine: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    if machine["card"] is None:
        yield "On the CPU peaks are of RAM, mapped files included, and a budget is not enforced."
    else:
        yield "Peaks are the allocator's reserved memory plus the CUDA context, of the whole process."
    if any(row["kind"] == "diffusers" and row["ok"] for row in rows):
        yield "diffusers' rows hold the transformer alone; the engine's hold text encoder and VAE too."
    for row in rows:
        if wait := row.get("weights_wait"):
            yield f"{row['name']}: weights wait {wait['tier']} ({wait['reason']})."
        for text in row.get("degraded", ()):
            yield f"{row['name']}: memory was short: {text}."
        if not row.get("lora", {"ok": True})["ok"]:
            yield f"{row['name']}, LoRA: {row['lora']['reason']}"
