"""The planner's numbers: what the VAE takes, counted, and the tile that fits what is free."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from diffusers import AutoencoderKLQwenImage

from realchar.bench.live_memory import LiveMemory
from realchar.engine import still_vae, tiling
from realchar.engine.memory import DECODE_BYTES, ENCODE_BYTES, LARGEST_HALO, Footprint, estimate_bytes, plan_tile
from realchar.engine.pace import Pace

WIDTH = 16
FULL_SIZE = Footprint(weight_bytes=57_000_000_000, width=3072, vae_width=96, on_gpu=True)


@pytest.fixture(scope="module")
def vae() -> AutoencoderKLQwenImage:
    torch.manual_seed(0)
    return AutoencoderKLQwenImage(base_dim=WIDTH, z_dim=16).eval().requires_grad_(False)


def test_counting_sees_what_lives_at_once() -> None:
    with LiveMemory() as memory:
        x = torch.zeros(1000)
        y = x + 1
        del x
        z = (y * 2).view(10, 100)
        del y
        assert memory.now == 4000 and z.numel() == 1000
    assert memory.peak == 8000


@pytest.mark.parametrize("tile", [None, (16, 16), (16, 32)])
def test_the_vae_takes_no_more_than_is_planned(vae: AutoencoderKLQwenImage, tile: tiling.Tile | None) -> None:
    latents, pixels = torch.randn(1, 16, 48, 32), torch.rand(1, 3, 384, 256)
    read = 48 * 32 if tile is None else min(48, tile[0] + 26) * min(32, tile[1] + 26)
    with torch.no_grad(), still_vae.planar():
        with LiveMemory() as decoding:
            still_vae.decode(vae, latents, tile)
        with LiveMemory() as encoding:
            still_vae.encode(vae, pixels, tile)
    counted = [memory.peak / 2 / (read * 64 * WIDTH) for memory in (decoding, encoding)]  # as in bfloat16
    print("bytes a pixel and channel, decoding and encoding:", *[round(value, 1) for value in counted])
    assert counted[0] <= DECODE_BYTES / 1.22 and counted[1] <= ENCODE_BYTES / 1.22  # the kernels' own share
    if tile is None:
        assert counted[0] > DECODE_BYTES / 2 and counted[1] > ENCODE_BYTES / 2  # nor are the bounds idle


def test_the_stock_vae_takes_more_than_twice_as_much(vae: AutoencoderKLQwenImage) -> None:
    with torch.no_grad(), LiveMemory() as decoding:
        vae.decode(torch.randn(1, 16, 1, 32, 32))
    with torch.no_grad(), LiveMemory() as encoding:
        vae.encode(torch.rand(1, 3, 1, 256, 256))
    counted = [memory.peak / 2 / (256 * 256 * WIDTH) for memory in (decoding, encoding)]
    print("bytes a pixel and channel of the stock VAE, decoding and encoding:", *[round(value, 1) for value in counted])
    assert counted[0] > 2 * 10.2 and counted[1] > 2 * 8.5


def test_a_tile_fits_what_is_free() -> None:
    rows = columns = 128  # 1024 x 1024 pixels
    assert plan_tile(FULL_SIZE, (rows, columns), free=8_000_000_000, halo=13) is None
    for free in (1_200_000_000, 600_000_000):
        tile = plan_tile(FULL_SIZE, (rows, columns), free, halo=13)
        assert tile is not None
        read = min(rows, tile[0] + 26) * min(columns, tile[1] + 26)
        assert read * 64 * 96 * max(DECODE_BYTES, ENCODE_BYTES) <= free
    assert plan_tile(FULL_SIZE, (rows, columns), free=0, halo=13) == (8, 8)


def test_the_cpu_counts_in_float32() -> None:
    on_cpu = Footprint(FULL_SIZE.weight_bytes, FULL_SIZE.width, FULL_SIZE.vae_width, on_gpu=False)
    assert 1.9 < estimate_bytes(on_cpu, 1024, 1024) / estimate_bytes(FULL_SIZE, 1024, 1024) <= 2


def test_the_planned_halo_is_no_smaller_than_the_real_one() -> None:
    vae = AutoencoderKLQwenImage(base_dim=8, z_dim=16)
    reach = [still_vae.decoder_reach(vae).after, *(ceil(side / 8) for side in still_vae.encoder_reach(vae))]
    assert max(reach) == LARGEST_HALO


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ([2.0] * 9, []),
        ([2.0, 2.1, 7.0, 2.0, 7.0, 2.0], []),  # one slow step at a time
        ([2.0, 2.1, 1.9, 7.0, 7.5, 8.0, 8.0], [4]),  # told once
        ([9.0, 2.0, 2.0, 2.1], []),  # the first waits for what is compiled or loaded
        ([1.0, 9.0, 9.0, 9.0], []),  # too early to know what is usual
        ([2.0, 2.0, 5.9, 5.9], []),
    ],
)
def test_steps_that_suddenly_take_much_longer_are_noticed(seconds: list[float], told: list[int]) -> None:
    pace = Pace()
    assert [i for i, each in enumerate(seconds) if pace.jumps(each) is not None] == told
