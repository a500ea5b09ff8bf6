"""Weights on the host: mapped files as they are, damage as a sentence, and the tier in which they wait for the card."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from realchar.engine.layout import lay_out
from realchar.engine.residency import HostWeights, StagingRing
from realchar.engine.tiers import HostFacts, Tier, choose_tier, only
from realchar.engine.weights import WeightSource
from realchar.errors import ModelError
from tests.streams import LaggingCopies
from tests.tiny import DEMO

FOLDER = DEMO / "transformer"
FILE = FOLDER / "diffusion_pytorch_model.safetensors"


def folder_of(tmp_path: Path, data: bytes, name: str = "model.safetensors") -> Path:
    (tmp_path / name).write_bytes(data)
    return tmp_path


def header(rows: object, data: bytes = b"") -> bytes:
    text = json.dumps(rows).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_views_are_the_file_and_tensors_are_copies() -> None:
    source, expected = WeightSource(FOLDER), load_file(FILE)
    assert source.entries.keys() == expected.keys() and source.num_bytes == FILE.stat().st_size
    for name, tensor in expected.items():
        view = source.view(name)
        assert view.dtype == tensor.dtype and torch.equal(view, tensor)
        assert view.untyped_storage().data_ptr() == source.mapping(FILE).untyped_storage().data_ptr()
    copy = source.tensor("proj_out.weight")
    copy.zero_()
    assert torch.equal(source.view("proj_out.weight"), expected["proj_out.weight"])


def test_numbers_that_old_writers_left_unaligned_are_read(tmp_path: Path) -> None:
    values = torch.arange(6, dtype=torch.float32)
    rows = {"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    rows["y"] = {"dtype": "F32", "shape": [2, 3], "data_offsets": [1, 25]}
    source = WeightSource(folder_of(tmp_path, header(rows, b"\0" + values.numpy().tobytes())))
    assert torch.equal(source.view("y"), values.view(2, 3))


GOOD = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 4,
        b"\xff" * 64,
        (100).to_bytes(8, "little") + b"{}",
        header(GOOD, b"\0" * 7),
        header({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, b"\0" * 8),
        header({"x": {"dtype": "F31", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8),
        header({"x": {"dtype": "F32", "shape": [-2], "data_offsets": [8, 0]}}, b"\0" * 8),
        header({"x": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}, b"\0" * 8),
        header({"x": 3}),
        header([]),
        header(7),
        (6).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc\xfb\xfa",
    ],
)
def test_damaged_files_are_a_sentence(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ModelError, match=r"can't be read .*; copy the folder again") as caught:
        _ = WeightSource(folder_of(tmp_path, data)).entries
    assert caught.value.code == "weights_damaged"


def test_files_that_are_missing_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no \.safetensors file"):
        _ = WeightSource(tmp_path).entries
    index = {"weight_map": {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"x": torch.zeros(2)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(ModelError, match="00002-of-00002"):
        _ = WeightSource(tmp_path).entries
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="weight_map"):
        _ = WeightSource(tmp_path).entries


def test_a_truncated_base_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = FILE.read_bytes()
    for size in (4, 1000, 40_000, len(whole) // 2, len(whole) - 1):
        (tmp_path / str(size)).mkdir()
        with pytest.raises(ModelError, match="can't be read"):
            _ = WeightSource(folder_of(tmp_path / str(size), whole[:size])).entries


def test_a_block_is_few_copies_and_each_weight_is_aligned() -> None:
    source = WeightSource(FOLDER)
    names = [n for n in source.entries if n.startswith("transformer_blocks.2.") and "_mod." not in n]
    for dtype in (torch.float32, torch.bfloat16):
        layout = lay_out(source, {name: torch.Size(source.entry(name).shape) for name in names}, dtype)
        assert len(layout.runs) == 2  # as the file has them: up to img_mod, and txt_mlp
        ends = 0
        for name, (offset, shape) in sorted(layout.places.items(), key=lambda item: item[1][0]):
            assert offset >= ends and offset * dtype.itemsize % 64 == 0, name
            ends = offset + shape.numel()
        assert ends == layout.numel and layout.places.keys() == set(names)


REFUSED: Tier = "registered"
TIERS: list[tuple[HostFacts, Tier, str]] = [
    (HostFacts(False, "Linux", 64, 41), "plain", "no card"),
    (HostFacts(False, "Windows", 1, 41), "plain", "no card"),
    (HostFacts(True, "Linux", 64, 41), "registered", "locked in RAM"),
    (HostFacts(True, "Linux", 45, 41), "registered", "locked in RAM"),
    (HostFacts(True, "Linux", 44.9, 41), "staging", r"44\.9 GB of RAM are free, 45\.0 GB are needed"),
    (HostFacts(True, "Linux", 64, 41, {"registered": "error 801"}), "pinned", "error 801"),
    (HostFacts(True, "Linux", 64, 41, {"registered": "error 1", "pinned": "error 2"}), "staging", "error 1.*error 2"),
    (HostFacts(True, "Windows", 64, 41), "pinned", "not tried on Windows"),
    (HostFacts(True, "Windows", 64, 41, {"pinned": "error 2"}), "staging", "error 2|Windows"),
    (HostFacts(True, "Windows", 31, 41), "staging", "slower"),
    (HostFacts(True, "Linux", 64, 41, only("auto")), "registered", "locked in RAM"),
    (HostFacts(True, "Linux", 64, 41, only("registered")), "registered", "locked in RAM"),
    (HostFacts(True, "Linux", 64, 41, only("pinned")), "pinned", "pinned was asked for"),
    (HostFacts(True, "Linux", 64, 41, only("staging")), "staging", "staging was asked for"),
]


@pytest.mark.parametrize(("facts", "tier", "reason"), TIERS)
def test_the_tier_is_a_rule(facts: HostFacts, tier: Tier, reason: str) -> None:
    choice = choose_tier(facts)
    assert choice.tier == tier and re.search(reason, choice.reason), choice


def halves(folder: Path) -> dict[str, torch.Tensor]:
    """Write the weights as two files; returns them."""
    tensors = load_file(FILE)
    names = sorted(tensors)
    for i in range(2):
        save_file({name: tensors[name] for name in names[i::2]}, folder / f"{i}.safetensors")
    return tensors


@pytest.mark.parametrize(
    ("refuses", "free_gb", "tier", "locked"),
    [
        ((), 64.0, "registered", 2),
        (("registered",), 64.0, "pinned", 2),
        (("registered", "pinned"), 64.0, "staging", 0),
        ((), 1.0, "staging", 0),
    ],
)
def test_what_the_driver_refuses_is_replaced_and_given_back(
    tmp_path: Path, refuses: tuple[str, ...], free_gb: float, tier: str, locked: int
) -> None:
    tensors = halves(tmp_path)
    copies = LaggingCopies(refuses)
    source = WeightSource(tmp_path)
    host = HostWeights(source, copies, HostFacts(True, "Linux", free_gb, 0.02))
    assert host.choice.tier == tier and list(copies.locked_now.values()) == [tier] * locked
    own = source.mapping(tmp_path / "0.safetensors").data_ptr()
    assert (own in copies.locked_now) == (tier == "registered")
    for name, tensor in tensors.items():
        entry = source.entry(name)
        target = torch.empty(tensor.numel(), dtype=torch.float32)
        host.upload(target, host.span(entry.file, entry.start, entry.stop, entry.dtype))
        assert torch.equal(target.view(tensor.shape), tensor.float())
    del host
    gc.collect()
    assert not copies.locked_now


def test_a_refusal_in_the_middle_unlocks_what_was_locked(tmp_path: Path) -> None:
    halves(tmp_path)

    class Second(LaggingCopies):
        def register(self, data: torch.Tensor, *, read_only: bool) -> str | None:
            return "error 2" if self.locked_now else super().register(data, read_only=read_only)

    copies = Second()
    host = HostWeights(WeightSource(tmp_path), copies, HostFacts(True, "Linux", 64, 0.04))
    assert host.choice.tier == "staging" and not copies.locked_now


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("numel", [1, 7, 256, 1000, 4096 + 3])
def test_the_ring_carries_any_length(threads: int, numel: int) -> None:
    ring = StagingRing(LaggingCopies(), buffers=3, num_bytes=512, threads=threads)
    span = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    target = torch.zeros(numel, dtype=torch.float32)
    ring.upload(target, span)
    assert torch.equal(target, span)
    half = torch.zeros(numel, dtype=torch.bfloat16)
    ring.upload(half, span)
    assert torch.equal(half, span.bfloat16())
