"""What the page is built from: choices, limits, and the data that its script starts with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from realchar.presets import PRESETS, small_edge
from realchar.settings import Offload, Settings
from tests.fakes import FakeService, fake_version
from ui import handlers
from ui.texts import TEXTS

UI = Path(__file__).resolve().parents[1] / "ui"


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    return FakeService(Settings.load({}, data=tmp_path, weights=tmp_path))


def test_versions_are_short_unless_two_share_a_number(service: FakeService) -> None:
    assert handlers.weight_choices(service)[0] == ("v8500 · 1 MB", "AnythingtoRealCharacters2511_0008500")  # type: ignore[arg-type]
    service.listing = [
        fake_version("a_20", "a_20", 20, bytes=612_300_000),
        fake_version("b/a_20", "a_20", 20, action="warn", matched=16, total=17),
        fake_version("flux_30", "flux_30", 30, action="reject", matched=0, total=0),
        fake_version("plain", "plain", None, bytes=20_000),
    ]
    service.default = service.listing[0]
    labels = [label for label, _ in handlers.weight_choices(service)]  # type: ignore[arg-type]
    assert labels == [
        "a_20 · newest · 612 MB",
        "b/a_20 · 1 MB · 16 of 17 modules",
        "plain · 0.02 MB",
        "No LoRA (base only)",
    ]
    assert handlers.default_weights(service) == "a_20"  # type: ignore[arg-type]


def test_no_versions_leave_the_base_only(service: FakeService) -> None:
    service.listing = []
    assert handlers.weight_choices(service) == [("No LoRA (base only)", handlers.NO_LORA)]  # type: ignore[arg-type]
    assert handlers.default_weights(service) == handlers.NO_LORA  # type: ignore[arg-type]


@pytest.mark.parametrize(("long_edge", "small"), [(1024, 768), (384, 288), (256, 192), (40, 32)])
def test_small_size_is_bound_to_the_base(long_edge: int, small: int) -> None:
    assert small_edge(long_edge) == small


def test_every_preset_can_be_told_apart_by_its_numbers() -> None:
    table = handlers.preset_table()
    assert len({(row["cfg"], row["steps"], row["size"]) for row in table.values()}) == len(PRESETS)


def test_modes_are_those_of_the_machine(tmp_path: Path) -> None:
    settings = Settings.load({}, data=tmp_path, weights=tmp_path, vram=7.5)
    cpu, card = FakeService(settings), FakeService(settings, card_gb=24.6)
    assert [value for _, value in handlers.offload_choices(cpu)] == ["auto", "stream", "resident"]  # type: ignore[arg-type]
    assert handlers.offload_choices(card)[0] == ("Automatic (stream)", "auto")  # type: ignore[arg-type]
    assert [value for _, value in handlers.offload_choices(card)][1:] == ["stream", "resident", "model", "sequential"]  # type: ignore[arg-type]
    assert handlers.most_vram(card) == 7.5 and "own budget of 7.5 GB" in handlers.vram_info(card)  # type: ignore[arg-type]
    card.settings = Settings.load({}, data=tmp_path, weights=tmp_path, offload=Offload.MODEL)
    assert handlers.most_vram(card) == 24 and handlers.vram_info(card).endswith("0: what is free")  # type: ignore[arg-type]
    assert handlers.offload_choices(card)[0] == ("Automatic (model)", "auto")  # type: ignore[arg-type]
    data = handlers.boot(cpu, tmp_path, ["preset"])  # type: ignore[arg-type]
    assert data["most_vram"] == 0 and data["choices"]["strategy"] == ["auto", "quality", "batch"]
    assert {name: row["strategy"] for name, row in data["presets"].items()} == {
        "draft": "auto",
        "daily": "auto",
        "portrait": "quality",
        "batch": "batch",
        "official": "auto",
    }


def test_boot_data_can_not_leave_its_script(service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "x.png").touch()
    (tmp_path / "README.md").touch()
    data = handlers.boot(service, tmp_path, ["preset"])  # type: ignore[arg-type]
    assert data["samples"] == ["x.png"]
    text = handlers.script_json({**data, "notice": "</script><img src=x>"})
    assert "<" not in text
    assert json.loads(text)["notice"] == "</script><img src=x>"


def test_every_word_is_there_and_used() -> None:
    code = (UI / "static" / "client.js").read_text(encoding="utf-8")
    code += "".join((UI / f"{name}.py").read_text(encoding="utf-8") for name in ("blocks", "controls", "handlers"))
    asked = {a or b for a, b in re.findall(r'T\["([a-z_.]+)"\]|\bt\("([a-z_.]+)"', code)}
    assert asked <= set(TEXTS)
    prefixes = tuple(re.findall(r"`([a-z.]+)\.\$\{", code)) + tuple(re.findall(r'f"([a-z.]+)\.\{', code))
    assert [key for key in TEXTS if key not in code and not key.startswith(prefixes)] == []
