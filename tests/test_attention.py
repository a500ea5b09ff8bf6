"""Attention backends: the rule that chooses one, its memory, and the sentence where one can't run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from realchar import machine
from realchar.catalog import load_base
from realchar.engine import attention
from realchar.engine.attention import Measured, Shape, choose, measure, settle
from realchar.engine.pipeline import Engine
from realchar.errors import InvalidInput
from realchar.schema import EditRequest, Planned
from realchar.settings import Attention, Offload, Precision, Settings, Speed
from tests.packages import broken_xformers
from tests.streams import denoise
from tests.tiny import DEMO, DEVICE

SHAPE = Shape(80, 2, 16)
OWN = Measured(Attention.SDPA, 2.0, 0.001)


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([], Attention.SDPA),
        ([Measured(Attention.CUDNN, 1.8, 0.001)], Attention.CUDNN),
        ([Measured(Attention.CUDNN, 1.92, 0.001)], Attention.SDPA),  # not clearly faster: the seed keeps its picture
        ([Measured(Attention.SAGE, 1.0, 0.02)], Attention.SDPA),  # not as exact
        ([Measured(Attention.SAGE, 1.0, float("nan"))], Attention.SDPA),
        ([Measured(Attention.XFORMERS, reason="not installed")], Attention.SDPA),
        ([Measured(Attention.FLASH, 1.7, 0.0014), Measured(Attention.CUDNN, 1.6, 0.0009)], Attention.CUDNN),
    ],
)
def test_the_fastest_that_is_as_exact_is_taken(others: list[Measured], chosen: Attention) -> None:
    assert choose([OWN, *others]) is chosen
    assert choose([*reversed(others), OWN]) is chosen


def test_measuring_compares_with_attention_by_its_definition() -> None:
    rows = {row.name: row for row in measure(SHAPE, torch.device(DEVICE), torch.float32)}
    own = rows[Attention.SDPA]
    assert own.ms is not None and own.ms > 0 and own.error is not None and own.error < 1e-3
    assert own.max_difference is not None and 0 < own.max_difference < 1e-3
    query, key, value = (torch.randn(1, 50, 2, 16) for _ in range(3))
    stock = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (query, key, value))).transpose(1, 2)
    assert torch.allclose(attention._exact([query, key, value]), stock[:, :, :1], atol=1e-5)
    if DEVICE == "cpu":
        assert all(row.reason for name, row in rows.items() if name is not Attention.SDPA)


def test_a_backend_that_can_not_run_here_is_refused_with_the_reason() -> None:
    with pytest.raises(
        InvalidInput, match=r"Attention 'flash-attn' can't run here \(.*flash-attn.*\); choose auto or sdpa"
    ):
        Engine.load(load_base(DEMO), DEVICE, speed=Speed(attention=Attention.FLASH_ATTN))
    if DEVICE == "cpu":
        with pytest.raises(InvalidInput, match=r"'cudnn' can't run here .it needs a graphics card.; choose auto"):
            Engine.load(load_base(DEMO), "cpu", speed=Speed(attention=Attention.CUDNN))


@pytest.mark.slow
def test_an_xformers_that_does_not_fit_costs_a_sentence_and_nothing_else(tmp_path: Path) -> None:
    code = (
        "from realchar.machine import prepare_engine_process; prepare_engine_process(); "
        "from realchar.engine.pipeline import Engine; from realchar.catalog import load_base; "
        "from realchar.settings import Attention, Speed; from realchar.errors import InvalidInput\n"
        "base = load_base(sys.argv[1])\n"
        "try: Engine.load(base, 'cpu', speed=Speed(attention=Attention.XFORMERS))\n"
        "except InvalidInput as error: print(error.message)\n"
        "print(Engine.load(base, 'cpu').family.attention)"
    )
    paths = [str(broken_xformers(tmp_path / "packages")), str(Path(machine.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys; {code}", str(DEMO)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        check=True,
    )
    refused, taken = done.stdout.splitlines()
    assert refused.startswith("Attention 'xformers' can't run here (xformers 9.8 does not fit PyTorch 2.")
    assert refused.endswith(": undefined symbol: x); choose auto or sdpa, or install what fits this PyTorch.")
    assert taken == "sdpa"


def test_what_was_chosen_is_remembered_for_this_card_and_these_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, calls = torch.device("cuda", 0), []

    def rows(*_: Any) -> list[Measured]:
        calls.append(1)
        return [OWN, Measured(Attention.CUDNN, 1.0, 0.001)]

    names = iter(["A card"] * 3 + ["Another"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: next(names))
    monkeypatch.setattr(attention, "measure", rows)
    dtype = torch.bfloat16
    assert [settle(Attention.AUTO, SHAPE, card, dtype, tmp_path / "new") for _ in range(2)] == [Attention.CUDNN] * 2
    assert len(calls) == 1
    settle(Attention.AUTO, replace(SHAPE, tokens=81), card, dtype, tmp_path / "new")
    settle(Attention.AUTO, SHAPE, card, dtype, tmp_path / "new")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A card")
    assert attention.chosen_before(card, tmp_path / "new") == ["cudnn"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A")
    assert attention.chosen_before(card, tmp_path / "new") == []
    assert len(calls) == 3 and len(json.loads((tmp_path / "new" / "attention.json").read_text())) == 3


@pytest.mark.parametrize("content", ["", "[1]", '{"x": 3', "{}"])
def test_a_damaged_memory_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    (tmp_path / "attention.json").write_text(content)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A card")
    monkeypatch.setattr(attention, "measure", lambda *_: [OWN])
    assert settle(Attention.AUTO, SHAPE, torch.device("cuda", 0), torch.bfloat16, tmp_path) is Attention.SDPA


def test_on_the_cpu_nothing_is_measured(tmp_path: Path) -> None:
    assert settle(Attention.AUTO, SHAPE, torch.device("cpu"), torch.float32, tmp_path) is Attention.SDPA
    assert not (tmp_path / "attention.json").exists()


def test_the_plan_says_which_it_is() -> None:
    from PIL import Image

    engine = Engine.load(load_base(DEMO), DEVICE, Offload.RESIDENT, speed=Speed(attention=Attention.SDPA))
    request = EditRequest(prompt="Photo.", steps=1, cfg=1.0)
    events = list(engine.run(request, Image.new("RGB", (32, 32), "teal"), (0, 0, 32, 32), []))
    assert next(event.attention for event in events if isinstance(event, Planned)) == "sdpa"
    assert Settings.load({"REALCHAR_ATTENTION": "xformers"}).speed == Speed(
        Precision.BF16, attention=Attention.XFORMERS
    )


def test_the_cuda_12_runtime_is_loaded_only_beside_xformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}
    loaded: list[str] = []
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcudart.so.12").touch()

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: found.get(name))
    monkeypatch.setattr("ctypes.CDLL", lambda path: loaded.append(Path(path).name))
    machine._load_cuda_12()
    found["nvidia.cuda_runtime"] = Spec()
    machine._load_cuda_12()
    assert loaded == []
    found["xformers"] = Spec()
    machine._load_cuda_12()
    assert loaded == ["libcudart.so.12"]


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a card: TEST_DEVICE=cuda")
@pytest.mark.parametrize("name", [Attention.CUDNN, Attention.FLASH, Attention.XFORMERS])
def test_every_backend_of_a_card_computes_the_same_up_to_rounding(name: Attention) -> None:
    results = []
    for chosen in (Attention.SDPA, name):
        for compiled in (False, True):
            speed = Speed(compiled=compiled, attention=chosen)
            family = Engine.load(load_base(DEMO), DEVICE, Offload.STREAM, speed=speed).family
            results.append(denoise(family.transformer, family.blocks).float())  # type: ignore[attr-defined]
    for result in results[1:]:
        assert (result - results[0]).norm() / results[0].norm() < 0.05
