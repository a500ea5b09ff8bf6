"""What a single job may choose about the machine: offload mode, budget, strategy; and that it never changes the picture."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from realchar.catalog import load_base
from realchar.cli import build_parser
from realchar.cli.convert import build_request, load_settings
from realchar.engine.memory import Footprint, Need
from realchar.engine.pipeline import Engine
from realchar.errors import InvalidInput
from realchar.headers import read_parts
from realchar.machine import GB, MemoryReading
from realchar.requests import check_choices, check_values, with_choices
from realchar.runner import EngineRunner, Task
from realchar.schema import EditRequest, Ended, Event, Job, JobState, Planned, Stage
from realchar.service import Service
from realchar.settings import Offload, Settings, Strategy
from tests.pictures import painting
from tests.tiny import DEMO

REQUEST = EditRequest("Photo.", steps=2, cfg=3.0, seed=1, stamp=False)
CARD = MemoryReading("gpu", 2.0, 24.0, "RTX 4090")


def test_what_is_not_chosen_is_as_the_app_is_set() -> None:
    settings = Settings.load({}, offload=Offload.STREAM, vram=8.0, strategy=Strategy.BATCH)
    assert with_choices(settings, REQUEST) == settings
    chosen = with_choices(settings, replace(REQUEST, offload="model", vram=6.0, strategy="quality"))
    assert (chosen.offload, chosen.vram, chosen.strategy) == (Offload.MODEL, 6.0, Strategy.QUALITY)
    assert with_choices(settings, replace(REQUEST, vram=20.0)).vram == 8.0, "an old job's, from before it was lowered"
    assert with_choices(Settings.load({}), replace(REQUEST, vram=20.0)).budget == 20 * GB


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"offload": "disk"}, "Offload mode is 'disk', but auto, resident, stream, model or sequential is possible"),
        ({"strategy": "fast"}, "Strategy is 'fast', but auto, quality or batch is possible"),
        ({"vram": 0.0}, "A budget of 0 GB is not possible; give what the card may use"),
        ({"vram": float("nan")}, "A budget of nan GB is not possible"),
        ({"vram": 9.0}, "A budget of 9 GB is more than the app's own; choose 8 or less"),
        ({"offload": "sequential"}, "Offload mode 'sequential' moves weights to a graphics card, and none is used"),
    ],
)
def test_impossible_choices_are_a_sentence(choice: dict[str, Any], sentence: str) -> None:
    settings = Settings.load({}, vram=8.0)
    with pytest.raises(InvalidInput, match=sentence) as caught:
        check_choices(replace(REQUEST, **choice), settings, on_gpu=False)
    assert caught.value.code == next(iter(choice))
    check_choices(replace(REQUEST, offload="sequential", vram=8.0), settings, on_gpu=True)


def test_values_are_looked_at_wherever_a_request_comes_from() -> None:
    with pytest.raises(InvalidInput, match="Offload mode is 'disk'"):
        check_values(replace(REQUEST, offload="disk"))


# ---- the service


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service(Settings.load())
    yield service
    service.close()


def upload(service: Service, tmp_path: Path) -> dict[str, Any]:
    painting(96, 64).save(tmp_path / "a.png")
    return service.add_upload("ann", tmp_path / "a.png", "a.png")


def test_a_card_follows_mode_and_budget(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realchar.service.read_memory", lambda _: CARD)
    monkeypatch.setattr("realchar.service.has_card", lambda _: True)
    card = upload(service, tmp_path)
    assert (card["memory"], card["total_gb"], card["fits"]) == ("gpu", 24.0, True)
    need = {mode: service.fitted(card, mode)["need_gb"] for mode in ("stream", "resident")}
    assert need["stream"] <= need["resident"] and card["need_gb"] == need["stream"], "auto streams on a card"
    tight = service.fitted(card, vram=0.5)
    assert (tight["total_gb"], tight["fits"]) == (0.5, False)
    assert service.card("ann", card["id"], "safe") == card, "no choice is kept with the card"
    with pytest.raises(InvalidInput, match="Offload mode is 'x'"):
        service.fitted(card, "x")


def test_choices_travel_with_the_job(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = upload(service, tmp_path)
    request = replace(REQUEST, offload="stream", vram=6.5, strategy="batch")
    job = service.submit("ann", card["id"], request)
    assert service.get("ann", job.id).request == request
    assert service.retry("ann", job.id).request == request
    monkeypatch.setattr("realchar.service.has_card", lambda _: False)
    with pytest.raises(InvalidInput, match="graphics card"):
        service.submit("ann", card["id"], replace(REQUEST, offload="model"))


def test_rows_of_an_older_version_are_read(tmp_path: Path) -> None:
    old = {key: value for key, value in REQUEST.to_json().items() if key not in ("offload", "vram", "strategy")}
    assert EditRequest.from_json(old) == REQUEST


# ---- the worker


def job_of(request: EditRequest) -> Job:
    return Job("j", "ann", JobState.RUNNING, request, "u", "a.png", created=0.0)


def run(runner: EngineRunner, request: EditRequest, folder: Path) -> tuple[list[Event], np.ndarray[Any, Any]]:
    painting(96, 64).save(folder / "a.png")
    job = job_of(request)
    left = [(Task(job, {}), partial(runner.work, job, folder / "a.png", {"clean": folder / "out.png"}, lambda: None))]
    events: list[Event] = []
    for _, event in runner.loop(lambda: left.pop() if left else None).run():
        if not isinstance(event, Ended):
            events.append(event)
        elif event.error is not None:
            raise event.error
    return events, np.asarray(Image.open(folder / "out.png"))


def plan_of(events: list[Event]) -> Planned:
    return next(event for event in events if isinstance(event, Planned))


def test_another_mode_loads_anew_and_frees_the_old_engine_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = EngineRunner(Settings.load({}, base=str(DEMO), device="cpu", data=tmp_path, weights=tmp_path))
    assert runner.load()["offload"] == "resident"
    alive: list[weakref.ref[Any]] = []
    original = Engine.from_settings.__func__  # type: ignore[attr-defined]

    def watched(cls: type[Engine], *args: Any) -> Engine:
        assert [old for old in alive if old() is not None] == [], "two engines in memory"
        engine: Engine = original(cls, *args)
        alive.append(weakref.ref(engine.family.transformer))  # type: ignore[attr-defined]
        return engine

    monkeypatch.setattr(Engine, "from_settings", classmethod(watched))
    assert runner._engine is not None
    alive.append(weakref.ref(runner._engine.family.transformer))  # type: ignore[attr-defined]
    loads, modes, pictures = [], [], []
    for choice in (None, "stream", "stream", "auto", None):
        events, picture = run(runner, replace(REQUEST, offload=choice), tmp_path)
        loads.append(events[0] == Stage("load"))
        modes.append(plan_of(events).mode)
        pictures.append(picture)
    assert modes == ["resident", "stream", "stream", "resident", "resident"]
    assert loads == [False, True, False, True, False]
    assert all(np.array_equal(pictures[0], picture) for picture in pictures)


def test_another_budget_holds_from_the_next_job_on_without_loading(tmp_path: Path) -> None:
    settings = Settings.load({}, base=str(DEMO), device="cpu", offload=Offload.STREAM, data=tmp_path, weights=tmp_path)
    runner = EngineRunner(settings)
    base = load_base(DEMO)
    width, height = 352, 256  # what the demo base works on
    need = Need.of(read_parts(base.path), Footprint.of(base, on_gpu=False), width, height, REQUEST.steps)
    plans, loads = [], []
    for blocks in (None, 2, 5, None):
        vram = None if blocks is None else need.peak(blocks) / GB
        events, _ = run(runner, replace(REQUEST, vram=vram), tmp_path)
        plans.append((plan_of(events).resident, plan_of(events).budget_gb))
        loads.append(Stage("load") in events)
    assert [resident for resident, _ in plans] == [8, 2, 5, 8]
    assert plans[0][1] is None and plans[1][1] == pytest.approx(need.peak(2) / GB)
    assert loads == [True, False, False, False]


# ---- the command line


def parsed(*options: str) -> tuple[Settings, EditRequest]:
    args = build_parser().parse_args(["convert", "a.png", "-o", "b.png", *options])
    settings = load_settings(args)
    return settings, build_request(args, load_base(DEMO), settings)


def test_the_preset_chooses_a_strategy_and_the_option_wins() -> None:
    assert parsed()[1].strategy is None
    assert parsed("--preset", "portrait")[1].strategy == "quality"
    assert parsed("--preset", "batch")[1].strategy == "batch"
    assert parsed("--preset", "batch", "--strategy", "auto")[1].strategy == "auto"


def test_modes_and_budget_on_the_command_line() -> None:
    settings, request = parsed("--offload", "stream", "--vram", "6")
    assert (settings.offload, settings.vram, request.offload) == (Offload.STREAM, 6.0, None)
    assert parsed()[0].offload is Offload.AUTO
