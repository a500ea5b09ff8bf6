"""What `realchar doctor` finds, from scripted probes and cards, and one run over the real machine."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from realchar import catalog, doctor, machine
from realchar.cli import doctor as command
from realchar.doctor import Finding, Report
from realchar.headers import MODELS
from realchar.machine import Gpu, MemoryReading
from realchar.settings import Attention, HostMemory, Offload, Precision, Settings
from tests.packages import broken_xformers
from tests.tiny import DEMO

CARD = Gpu(0, "RTX 4090", 24.0, 20.0, "580.65")
CPU_TORCH = Report({"version": "2.13.0+cpu", "cuda": None, "usable": False, "error": ""})
GPU_TORCH = Report({"version": "2.13.0", "cuda": "13.0", "usable": True, "error": ""})


def make_base(folder: Path) -> Path:
    for name in catalog.COMPONENTS:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}", encoding="utf-8")
    (folder / "model_index.json").write_text(json.dumps({"_class_name": catalog.PIPELINE}), encoding="utf-8")
    config = {
        "num_attention_heads": 2,
        "attention_head_dim": 8,
        "num_layers": 1,
        "joint_attention_dim": 8,
        "in_channels": 4,
    }
    (folder / "transformer" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "vae" / "config.json").write_text(json.dumps({"base_dim": 8}), encoding="utf-8")
    for name in MODELS:
        (folder / name / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(990))
    (folder / "realchar.json").write_text(json.dumps({"title": "Small base"}), encoding="utf-8")
    return folder


def settings(tmp_path: Path, **values: Any) -> Settings:
    return Settings.load({}, root=tmp_path, **values)


BACKENDS = {"refused": {"sdpa": "", "cudnn": "", "xformers": "No operator found"}, "chosen": []}


# ---- probes


def test_probe_reads_json() -> None:
    assert doctor.probe("import sys; print('noise'); print('{\"a\": 1}')") == Report({"a": 1})


def test_probe_of_a_crashing_build_is_a_finding() -> None:
    report = doctor.probe("import os; os._exit(139)")
    assert "crashed" in report.error and "139" in report.error
    finding = doctor.check_xformers(report, GPU_TORCH)
    assert finding.state == "warn" and "2.13.0" in finding.text and finding.remedy


def test_probe_tells_the_last_line_of_an_error() -> None:
    assert doctor.probe("raise ImportError('undefined symbol: x')").error == "ImportError: undefined symbol: x"


def test_probe_does_not_hang() -> None:
    assert "0.2 s" in doctor.probe("import time; time.sleep(60)", timeout=0.2).error


def test_probe_without_an_answer() -> None:
    assert doctor.probe("pass").error


# ---- PyTorch against the card


@pytest.mark.parametrize(
    ("report", "cards", "state", "words"),
    [
        (GPU_TORCH, [CARD], "ok", "CUDA 13.0"),
        (CPU_TORCH, [], "ok", "2.13.0+cpu"),
        (CPU_TORCH, [CARD], "warn", "without CUDA"),
        (Report({}, "ImportError: libc10.so"), [], "bad", "libc10.so"),
        (
            Report({"version": "2.13.0", "cuda": "13.0", "usable": False, "error": "too old"}),
            [Gpu(0, "RTX 4090", 24.0, 20.0, "550.1")],
            "bad",
            "580",
        ),
        (
            Report({"version": "2.13.0", "cuda": "13.0", "usable": False, "error": "no kernel image"}),
            [CARD],
            "bad",
            "no kernel image",
        ),
    ],
)
def test_torch(report: Report, cards: list[Gpu], state: str, words: str) -> None:
    finding = doctor.check_torch(report, cards)
    assert finding.state == state and words in finding.text + finding.remedy
    assert bool(finding.remedy) == (state != "ok")


def test_cards_are_named_and_crowded_ones_reported() -> None:
    assert "RTX 4090 (20.0 of 24.0 GB free); driver 580.65." in doctor.check_gpu([CARD]).text
    crowded = doctor.check_memory([Gpu(0, "RTX 4090", 24.0, 2.0, "580.65")])[0]
    assert (crowded.key, crowded.state) == ("vram", "warn")


def test_hidden_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES" in doctor.check_gpu([]).text


# ---- attention


@pytest.mark.parametrize(
    ("wanted", "found", "error", "state", "words"),
    [
        ("auto", {}, "", "ok", "PyTorch's own, on the CPU"),
        ("xformers", {}, "", "bad", "'xformers' can't run here: it needs a graphics card"),
        ("auto", BACKENDS | {"chosen": ["cudnn"]}, "", "ok", "sdpa, cudnn run here; auto has taken cudnn"),
        ("auto", BACKENDS, "", "ok", "sdpa, cudnn run here; auto measures them when"),
        ("cudnn", BACKENDS, "", "ok", "cudnn is asked for"),
        ("xformers", BACKENDS, "", "bad", "'xformers' can't run here: No operator found"),
        ("auto", {}, "the process crashed (exit code -11)", "warn", "crashed"),
    ],
)
def test_attention(tmp_path: Path, wanted: str, found: Any, error: str, state: str, words: str) -> None:
    finding = doctor.check_attention(settings(tmp_path, attention=Attention(wanted)), found, error)
    assert finding.state == state and words in finding.text
    assert bool(finding.remedy) == (state != "ok")


def test_probes_load_what_the_engine_loads_before_pytorch() -> None:
    package = str(Path(doctor.__file__).parents[1])
    told = doctor.probe(
        f"{doctor.PREPARED}import json, os; print(json.dumps(os.environ['GOMP_SPINCOUNT']))", "", package
    )
    assert told == Report("0")
    for code in (doctor.LIBRARIES, doctor.ATTENTION, doctor.XFORMERS):
        assert code.startswith(doctor.PREPARED)


@pytest.mark.slow
def test_an_xformers_that_does_not_fit_is_a_warning_and_breaks_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = str(Path(doctor.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(broken_xformers(tmp_path)), package]))
    finding = doctor.check_xformers(doctor.probe(doctor.XFORMERS, "cuda", package), CPU_TORCH)
    assert (finding.state, "undefined symbol: x" in finding.text) == ("warn", True)
    assert doctor.probe(doctor.LIBRARIES, "cuda", package).values["diffusers"].startswith("0.42")


# ---- the data folder


def test_data_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    parent = tmp_path / "我的 files"
    parent.mkdir()
    assert doctor.check_data(parent / "data").state == "ok"
    assert list(parent.iterdir()) == []


def test_data_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file", encoding="utf-8")
    finding = doctor.check_data(tmp_path / "data")
    assert finding.state == "bad" and "REALCHAR_DATA" in finding.remedy


def test_data_folder_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        SimpleNamespace(mountpoint=str(Path(tmp_path.anchor)), fstype="ext4", opts="rw"),
        SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4", opts="rw"),
        SimpleNamespace(mountpoint=str(tmp_path / "other"), fstype="ext4", opts="rw"),
    ]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: parts)
    finding = doctor.check_data(tmp_path / "data")
    assert finding.state == "bad" and "nfs4" in finding.text
    assert doctor.filesystem(tmp_path / "other" / "data") == "ext4"


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for free in (0.1, 1.0, 50.0):
        monkeypatch.setattr(machine, "disk_free", lambda path, free=free: free)
        states.append(doctor.check_disk(tmp_path).state)
    assert states == ["bad", "warn", "ok"]


# ---- the choice


def choice(tmp_path: Path, torch: Report, weight_gb: float = 0.001, **values: Any) -> Finding:
    base = replace(catalog.load_base(make_base(tmp_path / "base")), weight_bytes=int(weight_gb * 1e9))
    return doctor.check_choice(settings(tmp_path, **values), base, usable=bool(torch.values.get("usable")))


def test_choice_on_the_cpu(tmp_path: Path) -> None:
    finding = choice(tmp_path, CPU_TORCH)
    assert finding.state == "ok"
    assert "Small base on the CPU in float32, because PyTorch can't use a graphics card here" in finding.text


def test_choice_on_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = {"auto": MemoryReading("gpu", 4.0, 24.0, "RTX 4090")}
    monkeypatch.setattr(machine, "read_memory", readings.__getitem__)
    finding = choice(tmp_path, GPU_TORCH)
    assert finding.state == "ok" and "RTX 4090 in bfloat16, because PyTorch can use it" in finding.text


def test_choice_names_the_offload_mode_and_where_weights_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = catalog.load_base(DEMO)
    needs = {}
    for offload in (Offload.AUTO, Offload.RESIDENT, Offload.STREAM):
        found = doctor.check_choice(settings(tmp_path, offload=offload), base, usable=False)
        mode = "resident" if offload is Offload.AUTO else offload
        assert found.state == "ok" and f"offload mode {mode};" in found.text
        needs[offload] = float(found.text.partition("it needs ")[2].split()[0])
    assert needs[Offload.AUTO] == needs[Offload.RESIDENT] >= needs[Offload.STREAM]
    found = doctor.check_choice(settings(tmp_path, offload=Offload.MODEL), base, usable=False)
    assert found.state == "bad" and "none is used here" in found.text and found.remedy == "Set REALCHAR_OFFLOAD=auto."
    found = doctor.check_choice(settings(tmp_path, precision=Precision.FP8), base, usable=False)
    assert found.state == "bad" and "fp8 is made while blocks are streamed" in found.text
    found = doctor.check_choice(settings(tmp_path, device="mps"), base, usable=True)
    assert found.state == "bad" and "'mps' is not usable here" in found.text
    card = MemoryReading("gpu", 4.0, 24.0, "RTX 4090")
    monkeypatch.setattr(machine, "read_memory", lambda _: card)
    monkeypatch.setattr(machine, "read_ram", lambda: MemoryReading("ram", 4.0, 64.0, "RAM"))
    monkeypatch.setattr("platform.system", lambda: "Linux")
    for memory, tier in (("auto", "registered"), ("pinned", "pinned"), ("staging", "staging")):
        found = doctor.check_choice(settings(tmp_path, host_memory=HostMemory(memory)), base, usable=True)
        assert f"offload mode stream, weights wait {tier} (" in found.text


def test_a_budget_that_is_too_small_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "read_memory", lambda _: MemoryReading("gpu", 4.0, 24.0, "RTX 4090"))
    for vram, state in ((0.5, "bad"), (8.0, "ok")):
        values = settings(tmp_path, offload=Offload.STREAM, vram=vram)
        found = doctor.check_choice(values, catalog.load_base(DEMO), usable=True)
        assert found.state == state and f"of a budget of {vram:g}" in found.text
        assert state == "ok" or "Raise REALCHAR_VRAM" in found.remedy


def test_choice_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    finding = choice(tmp_path, CPU_TORCH, weight_gb=4000)
    assert finding.state == "bad" and finding.remedy
    assert (
        "needs 80" in finding.text and "GB of RAM, but there are only" in finding.text
    )  # float32: twice 4000 and some


def test_asked_for_a_card_that_is_not_there(tmp_path: Path) -> None:
    finding = choice(tmp_path, CPU_TORCH, device="cuda")
    assert finding.state == "bad" and "'cuda'" in finding.text


def test_models_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir(exist_ok=True)
    models = settings(tmp_path, base=str(make_base(tmp_path / "base")))
    (tmp_path / "weights" / "look_v2511_0009500.safetensors").write_bytes(b"x")
    findings = doctor.check_models(models, CPU_TORCH)
    states = [(finding.key, finding.state) for finding in findings]
    assert states == [("base", "ok"), ("weights", "warn"), ("choice", "ok")]
    assert "1 LoRA version in" in findings[1].text and "none of which fits Small base" in findings[1].text
    factors = {"lora_A": torch.ones(4, 8), "lora_B": torch.ones(16, 4)}
    tensors = {f"txt_in.{side}.weight": factor for side, factor in factors.items()}
    save_file(tensors, tmp_path / "weights" / "look_v2511_0008500.safetensors")
    weights = doctor.check_models(models, CPU_TORCH)[1]
    assert weights.state == "ok" and "the newest that fits this base is look_v2511_0008500" in weights.text


def test_missing_base(tmp_path: Path) -> None:
    findings = doctor.check_models(settings(tmp_path, base=str(tmp_path / "nowhere")), CPU_TORCH)
    assert findings[0].state == "bad" and "nowhere" in findings[0].text and findings[0].remedy


# ---- the command


def run(monkeypatch: pytest.MonkeyPatch, findings: list[Finding], *args: str) -> int:
    monkeypatch.setattr(command, "diagnose", lambda settings: findings)
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    parsed = parser.parse_args(["doctor", *args])
    return int(parsed.run(parsed))


def test_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Finding("ram", "warn", "Little RAM.", "Close programs."), Finding("base", "bad", "No base.", "Get one.")
    assert run(monkeypatch, [good]) == 0
    assert "Little RAM." in capsys.readouterr().out
    assert run(monkeypatch, [good, bad], "--json") == 1
    assert json.loads(capsys.readouterr().out)[1] == {
        "key": "base",
        "state": "bad",
        "text": "No base.",
        "remedy": "Get one.",
    }


def test_doctor_does_not_import_torch() -> None:
    heavy = "('torch', 'diffusers', 'transformers')"
    code = f"import sys, realchar.cli.doctor; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_this_machine(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    findings = {finding.key: finding for finding in doctor.diagnose(settings(tmp_path, base=str(base)))}
    assert {
        "python",
        "gpu",
        "torch",
        "libraries",
        "xformers",
        "attention",
        "ram",
        "disk",
        "data",
        "base",
        "choice",
    } <= set(findings)
    assert "2.13.0" in findings["torch"].text
    assert findings["libraries"].state == "ok" and "diffusers 0.42" in findings["libraries"].text
    assert all(finding.remedy for finding in findings.values() if finding.state != "ok")
