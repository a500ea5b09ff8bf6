"""A running job is told to go on with other LoRA versions: from the next step on, exactly these, and never by half."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from realchar.catalog import file_sha256, load_base
from realchar.convert import conversion
from realchar.engine.pipeline import Engine
from realchar.errors import NotFound
from realchar.images import PrepareOptions
from realchar.results import parameters_text, read_request
from realchar.schema import Decoded, Degraded, EditRequest, Event, InEffect, LoraRef, Saved, Step
from realchar.settings import Offload
from tests.lora_files import write
from tests.tiny import DEMO, DEVICE

SIZE = (64, 32)
ONE, TWO = LoraRef("one_1"), LoraRef("two_2", 0.7)
REQUEST = EditRequest(prompt="Photo.", steps=3, cfg=3.0, seed=1, loras=(ONE,))
STREAMED = {"stream": (Offload.STREAM, 2), "resident": (Offload.RESIDENT, None)}


@pytest.fixture(params=STREAMED)
def engine(request: pytest.FixtureRequest) -> Engine:
    mode, kept = STREAMED[request.param]
    return Engine.load(load_base(DEMO), DEVICE, mode, resident_blocks=kept)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "one_1.safetensors", "kohya")
    write(tmp_path / "two_2.safetensors", "LoHa")  # another kind, modulation too
    return tmp_path


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (SIZE[1], SIZE[0], 3), dtype=np.uint8), "RGB")


def run(
    engine: Engine, folder: Path, loras: tuple[LoraRef, ...] = (ONE,), at: dict[int, Any] | None = None
) -> tuple[NDArray[np.uint8], list[Event], dict[str, Any]]:
    """Return pixels, events and facts of a run; `at`: what it is told when it asks for the n-th time."""
    asked = iter(range(1, 100))

    def switch() -> list[tuple[LoraRef, Path]] | None:
        wanted = (at or {}).get(next(asked))
        return None if wanted is None else [(ref, folder / f"{ref.name}.safetensors") for ref in wanted]

    request = EditRequest(**{**vars(REQUEST), "loras": loras})
    files = [folder / f"{ref.name}.safetensors" for ref in loras]
    events = list(engine.alone(told(engine.work(request, picture(), (0, 0, *SIZE), files, switch))))
    decoded = next(event for event in events if isinstance(event, Decoded))
    return np.asarray(decoded.image), events, decoded.facts


def told(work: Any) -> Any:
    yield (yield from work)


def in_effect(events: list[Event]) -> list[tuple[int | None, list[str]]]:
    return [(event.step, [ref["name"] for ref in event.loras]) for event in events if isinstance(event, InEffect)]


def test_what_it_is_told_before_the_first_step_is_as_if_asked_for_at_once(engine: Engine, folder: Path) -> None:
    wanted, _, _ = run(engine, folder, (TWO,))
    found, events, facts = run(engine, folder, (ONE,), {1: (TWO,)})
    assert np.array_equal(found, wanted)
    assert in_effect(events) == [(None, ["one_1"]), (1, ["two_2"])]
    assert facts["switches"] == [{"step": 1, "loras": [{"name": "two_2", "strength": 0.7}]}]


def test_from_a_step_on_the_others_count(engine: Engine, folder: Path) -> None:
    first, _, facts = run(engine, folder)
    assert "switches" not in facts
    second, _, _ = run(engine, folder, (TWO,))
    mixed, events, _ = run(engine, folder, (ONE,), {3: (TWO,)})
    assert in_effect(events) == [(None, ["one_1"]), (3, ["two_2"])]
    place = events.index(next(event for event in events if isinstance(event, InEffect) and event.step))
    assert [type(event) for event in events[:place]].count(Step) == 2
    assert not np.array_equal(mixed, first) and not np.array_equal(mixed, second)
    _, events, facts = run(engine, folder, (ONE,), {2: (TWO,), 3: ()})
    assert in_effect(events) == [(None, ["one_1"]), (2, ["two_2"]), (3, [])] and len(facts["switches"]) == 2
    assert np.array_equal(run(engine, folder)[0], first)  # nothing of it is left


def test_a_file_that_cant_be_used_leaves_the_run_as_it_is(engine: Engine, folder: Path) -> None:
    wanted, _, _ = run(engine, folder)
    (folder / "bad_3.safetensors").write_bytes(b"<html>")
    for bad, sentence in (("bad_3", "web page"), ("gone_4", "not there")):
        found, events, facts = run(engine, folder, (ONE,), {2: (LoraRef(bad),)})
        (degraded,) = (event for event in events if isinstance(event, Degraded))
        assert degraded.code == "switch" and sentence in degraded.text and "switches" not in facts
        assert np.array_equal(found, wanted)


def test_pictures_that_share_their_steps_share_the_version(engine: Engine, folder: Path) -> None:
    calls: list[int] = []

    def switch() -> list[tuple[LoraRef, Path]] | None:
        calls.append(1)
        return [(TWO, folder / "two_2.safetensors")] if len(calls) == 2 else None

    files = [folder / "one_1.safetensors"]
    works = [engine.work(REQUEST, picture(), (0, 0, *SIZE), files, each) for each in (lambda: None, switch)]
    left = [(i, lambda work=work: work) for i, work in enumerate(works)]
    events = list(engine.together(lambda: left.pop() if left else None, width=2).run())
    (degraded,) = (event for _, event in events if isinstance(event, Degraded))
    assert "share the version" in degraded.text
    assert not [event for _, event in events if isinstance(event, InEffect) and event.step]


def test_a_result_tells_what_it_was_switched_to(engine: Engine, folder: Path) -> None:
    source = folder / "in.png"
    picture().save(source)
    targets = {"stamped": folder / "out.png", "clean": folder / "out.clean.png"}

    def convert(switch: Callable[[], Any]) -> Iterator[Event]:
        options = PrepareOptions(long_edge=64)
        return engine.alone(conversion(engine, REQUEST, source, options, folder, targets, switch))

    told = iter([None, (TWO,), None])
    saved = list(convert(lambda: next(told)))[-1]
    assert isinstance(saved, Saved)
    (switch,) = saved.params["switches"]
    assert f"from step 2 two_2: {file_sha256(folder / 'two_2.safetensors')[:12]}" in parameters_text(saved.params)
    assert switch["step"] == 2 and switch["loras"][0]["version"] == 2
    assert switch["loras"][0]["sha256"] == file_sha256(folder / "two_2.safetensors")
    assert read_request(targets["stamped"]) is not None

    first = file_sha256(folder / "one_1.safetensors")

    def replaced() -> None:  # while it is in use: the result names the file that was read
        (folder / "two_2.safetensors").replace(folder / "one_1.safetensors")

    calls = iter([replaced, lambda: None, lambda: None])
    saved = list(convert(lambda: next(calls)()))[-1]
    assert isinstance(saved, Saved) and saved.params["loras"][0]["sha256"] == first

    def gone() -> tuple[LoraRef, ...]:
        return (LoraRef("../x"),)

    events = list(convert(gone))
    assert isinstance(events[-1], Saved) and next(e for e in events if isinstance(e, Degraded)).code == "switch"
    with pytest.raises(NotFound):
        list(engine.alone(conversion(engine, REQUEST, source, PrepareOptions(), folder / "none", targets)))
