"""Weights as 8-bit codes: how exact they are, how they lie, and that nothing about them hangs on what is resident."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from realchar.catalog import load_base
from realchar.engine.blocks import StreamedBlocks, stream_transformer
from realchar.engine.devices import check_speed
from realchar.engine.fp8 import CODES, Fp8Linear, dequantise, quantise
from realchar.engine.lora import AdapterSet
from realchar.engine.memory import Footprint, Need, plan_resident
from realchar.engine.pipeline import Engine
from realchar.errors import InvalidInput
from realchar.headers import read_parts
from realchar.settings import Offload, Precision, Speed
from tests.streams import LaggingCopies, denoise, resident, write_lora
from tests.tiny import DEMO, DEVICE

FOLDER = DEMO / "transformer"
NUM_BLOCKS = 8
CODED = [Precision.FP8, Precision.FP8_FAST]

pytestmark = pytest.mark.usefixtures("two_threads")


def streamed(precision: Precision, **options: object) -> tuple[nn.Module, StreamedBlocks]:
    device = torch.device(DEVICE)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    return stream_transformer(FOLDER, device, dtype, speed=Speed(precision), **options)  # type: ignore[arg-type]


def plain() -> tuple[nn.Module, object]:
    return resident(FOLDER, torch.bfloat16 if DEVICE == "cuda" else torch.float32, DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_are_within_a_sixteenth_and_rows_have_their_own_scale(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 96, generator=generator) * torch.logspace(-6, 3, 64)[:, None]
    weight[5] = 0
    weight = weight.to(dtype)
    codes, scales, back = torch.empty(64, 96, dtype=CODES), torch.empty(64), torch.empty(64, 96, dtype=dtype)
    quantise(weight.clone(), codes, scales)
    dequantise(codes, scales, back)
    error = (back.float() - weight.float()).abs()
    largest = weight.float().abs().amax(1, keepdim=True)
    # Three bits behind the point: half a step of 1/8 of the number, or of the smallest step of the row.
    assert (error <= weight.float().abs() / 15.5 + largest * 2**-17).all()
    assert torch.equal(back[5], weight[5])
    relative = error.norm(dim=1)[torch.arange(64) != 5] / weight.float().norm(dim=1)[torch.arange(64) != 5]
    assert relative.max() < 0.035 and relative.min() > 0.02


def test_a_layer_in_codes_is_its_layer_to_three_percent() -> None:
    linear = nn.Linear(96, 64).requires_grad_(False)
    x = torch.randn(2, 7, 96) * torch.tensor([1.0, 100.0])[:, None, None]
    expected = linear(x)
    weight = linear.weight.detach().clone()
    layer = Fp8Linear(linear)
    codes, scales = torch.empty(64, 96, dtype=CODES), torch.empty(64)
    quantise(weight, codes, scales)
    layer.weight.data, layer.scale.data = codes, scales
    found = layer(x)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    for one, other in zip(found, expected, strict=True):  # tokens have scales of their own
        assert 0.001 < (one - other).norm() / other.norm() < 0.05
    # The product of the very codes, scaled afterwards.
    amax = x.reshape(-1, 96).abs().amax(1, keepdim=True) / 448
    exact = F.linear((x.reshape(-1, 96) / amax).to(CODES).float() * amax, codes.float() * scales[:, None], layer.bias)
    assert torch.allclose(found.reshape(-1, 64), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("precision", CODED)
def test_what_is_resident_changes_no_bit(precision: Precision, tmp_path: Path) -> None:
    reference = plain()
    path = write_lora(tmp_path / "x.safetensors", reference[0])
    theirs = AdapterSet(*reference)  # type: ignore[arg-type]
    expected: dict[bool, torch.Tensor] = {}
    for number in (0, 3, NUM_BLOCKS):
        lagging = LaggingCopies() if number == 3 and DEVICE == "cpu" else None
        model = streamed(precision, resident=number, accelerator=lagging)
        ours = AdapterSet(*model)
        for i, versions in enumerate(([], [(path, 0.4)], [])):
            ours.use(versions)
            theirs.use(versions)
            latents = denoise(*model)
            first = expected.setdefault(i == 1, latents)
            assert torch.equal(latents, first), (number, i)
            exact = denoise(*reference)  # type: ignore[arg-type]
            assert 0.005 < (latents - exact).norm() / exact.norm() < 0.25, (number, i)
    assert not torch.equal(expected[False], expected[True])


@pytest.mark.parametrize("precision", CODED)
def test_resident_blocks_take_half(precision: Precision) -> None:
    least, all_there = (streamed(precision, resident=number)[1].num_bytes for number in (0, NUM_BLOCKS))
    as_they_are = streamed(Precision.BF16, resident=NUM_BLOCKS)[1].num_bytes
    in_bfloat16 = as_they_are if DEVICE == "cuda" else as_they_are // 2
    of_slots = least if precision is Precision.FP8 else least - 2 * (all_there - least) // (NUM_BLOCKS - 2)
    assert 0.5 < (all_there - of_slots) / in_bfloat16 < 0.55


@pytest.mark.parametrize("precision", Precision)
def test_keeping_more_and_fewer_changes_no_bit(precision: Precision) -> None:
    model = streamed(precision, resident=2)
    expected = denoise(*model)
    for number in (NUM_BLOCKS, 0, 5):
        model[1].keep(number)
        assert model[1].num_resident == number
        assert torch.equal(denoise(*model), expected), number


@pytest.mark.parametrize("precision", CODED)
def test_the_planner_keeps_about_twice_as_many(precision: Precision) -> None:
    parts, footprint = read_parts(DEMO), Footprint(57_000_000_000, 3072, 96, on_gpu=True)
    bf16, coded = (Need.of(parts, footprint, 512, 512, 20, precision=each) for each in (Precision.BF16, precision))
    assert coded.block < 0.55 * bf16.block
    for need in (bf16, coded):
        for total in range(need.peak(0), need.peak(parts.blocks) + 10**6, need.block // 3):
            number = plan_resident(need, total)
            assert need.peak(number) <= total + 4096
            assert number == parts.blocks or min(map(need.peak, range(number + 1, parts.blocks + 1))) > total - 4096


def test_precision_without_streaming_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match=r"fp8 is made while blocks are streamed.*choose stream"):
        Engine.load(load_base(DEMO), "cpu", Offload.RESIDENT, speed=Speed(Precision.FP8))


def test_a_card_that_does_not_multiply_in_codes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    card = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "An old card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    with pytest.raises(InvalidInput, match=r"An old card doesn't multiply.*choose fp8 instead"):
        check_speed(Speed(Precision.FP8_FAST), Offload.STREAM, card)
    check_speed(Speed(Precision.FP8), Offload.STREAM, card)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    check_speed(Speed(Precision.FP8_FAST), Offload.STREAM, card)
