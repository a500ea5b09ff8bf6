"""Looks at this machine and says what works, what will be chosen and why, and what to do about each problem.

torch and what builds on it are tried in processes of their own: a build that crashes there is a finding, not a crash.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realchar import catalog, machine, versions
from realchar.choice import Finding, State, check_attention, check_choice
from realchar.errors import ModelError, RealCharError
from realchar.headers import check_headers
from realchar.machine import Gpu
from realchar.requests import check_blocks
from realchar.settings import Settings

PROBE_S = 180  # a first import from a cold disk takes long
OLDEST_DRIVER = {"12": 525, "13": 580}  # by major version of the CUDA that torch was built with
NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smbfs",
    "smb3",
    "afpfs",
    "ceph",
    "glusterfs",
    "fuse.sshfs",
    "fuse.rclone",
    "9p",
    "davfs",
}
TORCH = """
import json, sys, torch
report = {"version": torch.__version__, "cuda": torch.version.cuda, "usable": False, "error": ""}
try:
    if torch.version.cuda:
        device = torch.device(sys.argv[1])
        report["usable"] = torch.ones(8, device=device).sum().item() == 8
        report["capability"] = torch.cuda.get_device_capability(device)
except Exception as error:
    report["error"] = str(error).splitlines()[0]
print(json.dumps(report))
"""
PREPARED = """
import sys
sys.path.append(sys.argv[2])
from realchar.machine import left_out, prepare_engine_process
prepare_engine_process()
"""
LIBRARIES = f"""{PREPARED}
import json, diffusers, transformers
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2VLProcessor
print(json.dumps({{"diffusers": diffusers.__version__, "transformers": transformers.__version__}}))
"""
ATTENTION = f"""{PREPARED}
import json, torch
from realchar.engine import attention
device = torch.device(sys.argv[1])
print(json.dumps({{"refused": attention.refusals(device, torch.bfloat16), "chosen": attention.chosen_before(device)}}))
"""
XFORMERS = f"""{PREPARED}
import importlib.metadata, importlib.util, json
if "xformers" in left_out:
    sys.exit(left_out["xformers"])
report = {{"version": ""}}
if importlib.util.find_spec("xformers"):
    import torch, xformers.ops
    report["version"] = importlib.metadata.version("xformers")
    if torch.cuda.is_available():
        q = torch.ones(1, 32, 2, 64, dtype=torch.float16, device=sys.argv[1])
        xformers.ops.memory_efficient_attention(q, q, q).sum().item()
print(json.dumps(report))
"""


@dataclass(frozen=True)
class Report:
    """What a probe printed, or in `error` why it printed nothing."""

    values: dict[str, Any]
    error: str = ""


def diagnose(settings: Settings, cards: list[Gpu] | None = None) -> list[Finding]:
    """Check everything that a conversion needs; takes as long as importing torch and diffusers twice. Never raises."""
    cards = machine.gpus() if cards is None else cards
    device = settings.device if settings.device.startswith("cuda") else "cuda"
    package = str(Path(__file__).parents[1])
    codes = (TORCH, LIBRARIES, XFORMERS, *((ATTENTION,) if cards else ()))
    with ThreadPoolExecutor() as pool:
        torch, libraries, xformers, *attention = pool.map(lambda code: probe(code, device, package), codes)
    tried = attention[0] if attention and torch.values.get("usable") else Report({})
    return [
        check_python(),
        check_gpu(cards),
        check_torch(torch, cards),
        check_libraries(libraries),
        check_xformers(xformers, torch),
        check_attention(settings, tried.values, tried.error),
        *check_memory(cards),
        check_disk(settings.data),
        check_data(settings.data),
        *check_models(settings, torch),
    ]


def probe(code: str, *args: str, timeout: float = PROBE_S) -> Report:
    """Run `code` in a fresh interpreter and read the JSON that it prints last."""
    env = {**os.environ, "PYTHONIOENCODING": "utf-8", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            env=env,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            return Report(
                {}, last if done.returncode == 1 and last else f"the process crashed (exit code {done.returncode})"
            )
        return Report(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return Report({}, f"no answer within {timeout:g} s")
    except (OSError, ValueError, IndexError) as error:
        return Report({}, str(error))


# ---- the machine


def check_python() -> Finding:
    text = f"Python {platform.python_version()} on {platform.platform()}"
    if sys.maxsize < 2**32:
        return Finding("python", "bad", f"{text} is a 32-bit build.", "Install a 64-bit Python from 3.11 on.")
    return Finding("python", "ok", f"{text}.")


def check_gpu(cards: list[Gpu]) -> Finding:
    if cards:
        names = ", ".join(f"{card.name} ({card.free_gb:.1f} of {card.total_gb:.1f} GB free)" for card in cards)
        return Finding("gpu", "ok", f"{names}; driver {cards[0].driver}.")
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        value = os.environ["CUDA_VISIBLE_DEVICES"]
        return Finding("gpu", "warn", f"CUDA_VISIBLE_DEVICES={value!r} shows no graphics card.", "Unset that variable.")
    if shutil.which("nvidia-smi") or Path("/proc/driver/nvidia/version").exists():
        remedy = "Restart the machine; if that does not help, install the driver anew (in WSL2: the one for Windows)."
        return Finding("gpu", "warn", "An NVIDIA driver is installed but does not answer.", remedy)
    return Finding("gpu", "ok", "No NVIDIA graphics card; everything runs on the CPU.")


def reinstall() -> str:
    if Path(sys.prefix).name == ".venv":
        return "Remove the folder .venv and start launch.py again."
    return f'Install the project anew with this Python: "{sys.executable}" -m pip install -e .'


def check_torch(report: Report, cards: list[Gpu]) -> Finding:
    if report.error:
        return Finding("torch", "bad", f"PyTorch can't be imported: {report.error}.", reinstall())
    version, cuda = report.values["version"], report.values["cuda"]
    if report.values["usable"]:
        return Finding("torch", "ok", f"PyTorch {version} computes on the graphics card (CUDA {cuda}).")
    if not cards:
        return Finding("torch", "ok", f"PyTorch {version}.")
    if not cuda:
        return Finding(
            "torch",
            "warn",
            f"PyTorch {version} is a build without CUDA, so the {cards[0].name} is not used.",
            "Install the CUDA build of the same version with the line that PyTorch's start page shows for this system.",
        )
    oldest = OLDEST_DRIVER.get(cuda.partition(".")[0], 0)
    if int(cards[0].driver.partition(".")[0]) < oldest:
        text = f"PyTorch {version} needs driver {oldest} or newer for CUDA {cuda}, but {cards[0].driver} is installed."
        return Finding("torch", "bad", text, f"Install an NVIDIA driver from {oldest} on.")
    text = f"PyTorch {version} (CUDA {cuda}) can't use the {cards[0].name}: {report.values['error']}."
    return Finding(
        "torch", "bad", text, "Restart the machine and update the driver; REALCHAR_DEVICE=cpu works meanwhile."
    )


def check_libraries(report: Report) -> Finding:
    if report.error:
        return Finding("libraries", "bad", f"The model classes can't be imported: {report.error}.", reinstall())
    return Finding("libraries", "ok", ", ".join(f"{name} {version}" for name, version in report.values.items()) + ".")


def check_xformers(report: Report, torch: Report) -> Finding:
    if report.error:
        text = f"xformers does not fit PyTorch {torch.values.get('version', '')}: {report.error}."
        return Finding("xformers", "warn", text, "PyTorch's own attention is used; or install the matching xformers.")
    if not report.values["version"]:
        return Finding("xformers", "ok", "xformers is not installed; PyTorch's own attention is used.")
    return Finding("xformers", "ok", f"xformers {report.values['version']} fits.")


def check_memory(cards: list[Gpu]) -> list[Finding]:
    findings = []
    for card in cards:
        if card.free_gb < 0.5 * card.total_gb:
            text = f"Only {card.free_gb:.1f} of {card.total_gb:.1f} GB are free on the {card.name}."
            findings.append(Finding("vram", "warn", text, "Close the programs that use the graphics card."))
    ram = machine.read_ram()
    free = ram.total_gb - ram.used_gb
    text = f"{free:.1f} of {ram.total_gb:.1f} GB of RAM are free."
    low = free < 2
    return [*findings, Finding("ram", "warn" if low else "ok", text, "Close other programs." if low else "")]


def check_disk(data: Path) -> Finding:
    free = machine.disk_free(data)
    text = f"{free:.1f} GB are free on the disk of {str(data)!r}."
    state: State = "bad" if free < 0.2 else "warn" if free < 2 else "ok"
    return Finding(
        "disk", state, text, "" if state == "ok" else "Free some space, or set REALCHAR_DATA to another disk."
    )


def check_data(data: Path) -> Finding:
    """Try what the queue does there: a file, and a database in SQLite's WAL mode."""
    remedy = "Set REALCHAR_DATA to a folder of yours on a local disk."
    parent = next(place for place in (data, *data.parents) if place.exists())
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".doctor-", dir=parent) as folder,
            closing(sqlite3.connect(Path(folder, "try.sqlite"))) as database,
        ):
            (mode,) = database.execute("pragma journal_mode=wal").fetchone()
            database.execute("create table t (x)")
    except (OSError, sqlite3.Error) as error:
        return Finding("data", "bad", f"The data folder {str(data)!r} can't be written: {error}.", remedy)
    kind = filesystem(data)
    if kind in NETWORK or mode != "wal":
        text = f"The data folder {str(data)!r} is on a network file system ({kind}), where the job queue is not safe."
        return Finding("data", "bad", text, remedy)
    return Finding("data", "ok", f"Jobs and results go to {str(data)!r}.")


def filesystem(path: Path) -> str:
    """Return the type of the file system that holds `path`; "" where the system doesn't tell."""
    import psutil

    best, kind = -1, ""
    for part in psutil.disk_partitions(all=True):
        if path.is_relative_to(part.mountpoint) and len(Path(part.mountpoint).parts) >= best:
            best, kind = len(Path(part.mountpoint).parts), "cifs" if "remote" in part.opts.split(",") else part.fstype
    return kind


# ---- the models, and the choice


def check_models(settings: Settings, torch: Report) -> list[Finding]:
    try:
        base = catalog.load_base(settings.base)
    except ModelError as error:
        remedy = "Give a complete diffusers folder with --base or REALCHAR_BASE."
        return [Finding("base", "bad", error.message, remedy)]
    damaged = catalog.damaged_files(base.path.parent) if base.demo else None  # another base's neighbours are not ours
    if damaged:
        text = f"{base.title} at {str(base.path)!r} does not match its manifest: {', '.join(damaged)}."
        return [Finding("base", "bad", text, "Get these files again, for example by git checkout -- weights.")]
    try:
        check_headers(base.path)
        check_blocks(settings, base)
    except RealCharError as error:
        return [Finding("base", "bad", error.message)]
    title = f"{base.title} at {str(base.path)!r}, {base.weight_bytes / machine.GB:.2f} GB{'' if damaged is None else ', as its manifest says'}."
    return [
        Finding("base", "ok", title),
        check_weights(settings, base),
        check_choice(settings, base, usable=bool(torch.values.get("usable"))),
    ]


def check_weights(settings: Settings, base: catalog.BaseInfo) -> Finding:
    """Say how many LoRA versions there are, and which one fits this base."""
    target = versions.target_of_base(base)
    listing = versions.scan_weights(settings.weights)
    fits = [info for info in listing if versions.report_of(info, target).action != "reject"]
    there = f"{len(listing)} LoRA version{'s' * (len(listing) != 1)} in {str(settings.weights)!r}"
    if fits:
        rest = len(listing) - len(fits)
        others = f" {rest} of them can't be used here: 'realchar weights list' says why." if rest else ""
        return Finding("weights", "ok", f"{there}; the newest that fits this base is {fits[0].name}.{others}")
    if listing:
        remedy = (
            "Choose versions made for it ('realchar weights list' says what these are), or give their base with --base."
        )
        return Finding("weights", "warn", f"{there}, none of which fits {base.title}.", remedy)
    return Finding("weights", "ok", f"{there}; the base is used alone.")
