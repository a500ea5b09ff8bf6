"""The modulation table: computed once for a schedule, shared, found again, and told apart by what changes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from realchar.engine.blocks import StreamedBlocks, stream_transformer
from realchar.engine.lora import AdapterSet
from realchar.engine.modulation import embed_timestep
from tests.streams import ATTENTION, MODULATION, TIME, TIMESTEPS, denoise, resident, write_lora
from tests.tiny import DEMO, copy_base

FOLDER = DEMO / "transformer"
OTHER = (1.0, 0.4, 0.1)

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture
def model() -> tuple[Any, StreamedBlocks]:
    return stream_transformer(FOLDER, torch.device("cpu"), torch.float32)


@pytest.fixture
def passes(model: tuple[Any, StreamedBlocks], monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the passes over the modulation weights."""
    tables, made = model[1]._tables, []
    original = tables._stream
    monkeypatch.setattr(tables, "_stream", lambda: made.append(1) or original())
    return lambda: len(made)


def prepare(blocks: StreamedBlocks, timesteps: tuple[float, ...] = TIMESTEPS) -> int:
    with torch.inference_mode():
        return sum(1 for _ in blocks.prepare(torch.tensor(timesteps)))


@pytest.mark.parametrize("zero_cond_t", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_what_the_block_computes(tmp_path: Path, zero_cond_t: bool, dtype: torch.dtype) -> None:
    folder = copy_base(tmp_path / "base", zero_cond_t=zero_cond_t) / "transformer"
    transformer, blocks = stream_transformer(folder, torch.device("cpu"), dtype)
    plain, _ = resident(folder, dtype)
    with torch.inference_mode():
        assert prepare(blocks) == 8
        for value in TIMESTEPS:
            timestep = torch.tensor([value], dtype=dtype)
            temb = embed_timestep(plain, timestep, dtype)
            assert torch.equal(temb, embed_timestep(transformer, timestep, dtype))
            for i, row in enumerate(blocks.modulation(timestep, temb)):
                theirs, ours = plain.transformer_blocks[i], transformer.transformer_blocks[i]
                assert torch.equal(ours.img_mod(row), theirs.img_mod(temb))
                assert torch.equal(ours.txt_mod(row[:1]), theirs.txt_mod(temb[:1]))


def test_equal_schedules_share_a_table(model: tuple[Any, StreamedBlocks], passes: Callable[[], int]) -> None:
    _, blocks = model
    assert [prepare(blocks), prepare(blocks)] == [8, 0]
    denoise(*model)
    assert passes() == 1
    assert [prepare(blocks, OTHER), prepare(blocks), prepare(blocks, OTHER)] == [8, 0, 0]
    assert passes() == 2


def test_a_timestep_of_no_schedule_is_computed_when_it_is_met(
    model: tuple[Any, StreamedBlocks], passes: Callable[[], int]
) -> None:
    expected = denoise(*resident(FOLDER))
    assert torch.equal(denoise(*model, prepared=False), expected)
    assert torch.equal(denoise(*model, prepared=False), expected)
    assert passes() == len(TIMESTEPS)


def test_two_schedules_side_by_side(model: tuple[Any, StreamedBlocks]) -> None:
    """Branches of one step may be at timesteps of different schedules."""
    _, blocks = model
    prepare(blocks)
    prepare(blocks, OTHER)
    with torch.inference_mode():
        for value in (0.61, 0.4):
            timestep = torch.tensor([value])
            row = blocks.modulation(timestep, torch.empty(0))[2]
            plain = resident(FOLDER)[0]
            assert torch.equal(
                row[:, : row.shape[1] // 2],
                plain.transformer_blocks[2].img_mod(embed_timestep(plain, timestep, torch.float32)),
            )


@pytest.mark.parametrize(("module", "again"), [(ATTENTION, 0), (MODULATION, 8), (TIME, 8)])
def test_only_versions_that_touch_modulation_ask_for_a_new_table(
    tmp_path: Path, model: tuple[Any, StreamedBlocks], module: str, again: int
) -> None:
    transformer, blocks = model
    path = write_lora(tmp_path / "x.safetensors", transformer, (module,))
    adapters = AdapterSet(transformer, blocks)
    assert prepare(blocks) == 8
    adapters.use([(path, 1.0)])
    assert [prepare(blocks), prepare(blocks)] == [again, 0]
    adapters.use([(path, 0.5)])  # another strength, another table
    assert prepare(blocks) == again
    adapters.use([])
    assert prepare(blocks) == 0


def test_a_pass_that_is_closed_leaves_no_table(model: tuple[Any, StreamedBlocks], passes: Callable[[], int]) -> None:
    _, blocks = model
    for stop in range(1, 9):
        with torch.inference_mode():
            work = blocks.prepare(torch.tensor(TIMESTEPS))
            for _ in range(stop):
                next(work)
            work.close()
    assert not blocks._tables._tables and passes() == 8
    assert torch.equal(denoise(*model), denoise(*resident(FOLDER)))


def test_tables_are_bounded_by_bytes_and_the_newest_stays(model: tuple[Any, StreamedBlocks]) -> None:
    _, blocks = model
    tables = blocks._tables
    prepare(blocks)
    tables._cached_bytes = 2 * next(iter(tables._tables.values())).num_bytes
    prepare(blocks, OTHER)
    assert prepare(blocks) == 0  # used again, so the other one is the oldest
    prepare(blocks, (0.9, 0.5, 0.3))
    assert prepare(blocks) == 0 and prepare(blocks, OTHER) == 8
    tables._cached_bytes = 0
    assert prepare(blocks, (0.8, 0.2)) == 8
    assert len(tables._tables) == 1 and prepare(blocks, (0.8, 0.2)) == 0
