"""Tiles give what the whole gives: cuts, halos, the VAE's encoder and decoder, and which tile is chosen."""

from __future__ import annotations

import itertools

import pytest
import torch
from diffusers import AutoencoderKLQwenImage
from torch import Tensor, nn

from realchar.engine import still_vae, tiling
from realchar.engine.tiling import Reach


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def vae() -> AutoencoderKLQwenImage:
    """The real depth (8 times smaller, two residual blocks a level) at little width, weights that carry far."""
    torch.manual_seed(0)
    made = AutoencoderKLQwenImage(base_dim=8, z_dim=4)
    for module in made.modules():
        if isinstance(module, nn.Conv3d | nn.Conv2d):
            nn.init.normal_(module.weight, std=1.5 / module.weight[0].numel() ** 0.5)
    return made.eval()


@pytest.mark.parametrize(("size", "tile", "step"), [(64, 16, 1), (61, 16, 1), (7, 100, 1), (200, 64, 8), (203, 8, 8)])
def test_spans_cover_everything_once(size: int, tile: int, step: int) -> None:
    found = tiling.spans(size, tile, Reach(5, 7), step)
    assert found[0].start == 0 and found[-1].stop == size and len(found) == -(-size // tile)
    for span, after in itertools.pairwise(found):
        assert span.stop == after.start
    for span in found:
        assert 0 < span.stop - span.start <= max(tile, step) + step and span.start % step == span.first % step == 0
        assert span.first <= max(0, span.start - 5) and span.last >= min(size, span.stop + 7)


def test_a_filter_in_tiles_equals_the_filter() -> None:
    conv = nn.Conv2d(3, 2, 5, padding=2)
    x = torch.rand(2, 3, 37, 50, generator=seeded())
    with torch.no_grad():
        whole = conv(x)
        for tile in ((37, 50), (10, 50), (9, 13), (1, 1)):
            assert torch.allclose(tiling.run_tiled(conv, x, tile, Reach(2, 2)), whole, atol=1e-6), tile
        short = tiling.run_tiled(conv, x, (9, 13), Reach(1, 1))
    assert (short - whole).abs().max() > 1e-3  # too small a halo is seen


@pytest.mark.parametrize("tile", [(8, 40), (11, 13), (16, 16), (33, 8)])
@torch.inference_mode()
def test_decoding_in_tiles_has_no_seams(vae: AutoencoderKLQwenImage, tile: tiling.Tile) -> None:
    latents = torch.randn(1, 4, 33, 40, generator=seeded(1))
    with still_vae.planar():
        whole, tiled = still_vae.decode(vae, latents), still_vae.decode(vae, latents, tile)
    assert whole.shape == tiled.shape == (1, 3, 264, 320)
    assert torch.allclose(tiled, whole, atol=1e-5 * float(whole.abs().max()))


@pytest.mark.parametrize("tile", [(8, 40), (11, 13), (16, 16), (33, 8)])
@torch.inference_mode()
def test_encoding_in_tiles_has_no_seams(vae: AutoencoderKLQwenImage, tile: tiling.Tile) -> None:
    pixels = torch.rand(1, 3, 264, 320, generator=seeded(2)) * 2 - 1
    with still_vae.planar():
        whole, tiled = still_vae.encode(vae, pixels)[0], still_vae.encode(vae, pixels, tile)[0]
    assert whole.shape == tiled.shape == (1, 4, 33, 40)
    assert torch.allclose(tiled, whole, atol=1e-5 * float(whole.abs().max()))


@torch.inference_mode()
def test_the_halo_is_what_a_pixel_depends_on(vae: AutoencoderKLQwenImage) -> None:
    """A number that is none spreads exactly as far as outputs depend on it."""
    encoder, decoder = vae.encoder, vae.decoder
    with still_vae.planar():
        x = torch.zeros(1, decoder.up_blocks[0].resnets[0].in_dim, 1, 32, 1)
        x[..., 16, :] = torch.nan
        for block in decoder.up_blocks:
            x = block(x)
        rows = torch.nonzero(decoder.conv_out(x).isnan()[0, 0, 0].any(-1)).flatten()
        reach = still_vae.decoder_reach(vae)
        far = (16 * 8 - int(rows.min()), int(rows.max()) - (16 * 8 + 7))
        assert [-(-distance // 8) for distance in far] == [*reach] == [13, 13]

        x = torch.zeros(1, 3, 1, 320, 8)
        x[..., 160, :] = torch.nan
        x = encoder.conv_in(x)
        for block in encoder.down_blocks:
            x = block(x)
        reach = still_vae.encoder_reach(vae)
        depend = [i for i in range(40) if 8 * i - reach.before <= 160 <= 8 * i + 7 + reach.after]
        assert torch.nonzero(x.isnan()[0, 0, 0].any(-1)).flatten().tolist() == depend and len(depend) == 17


def test_a_network_that_looks_everywhere_is_refused() -> None:
    vae = AutoencoderKLQwenImage(base_dim=8, z_dim=4, attn_scales=[0.5])
    with pytest.raises(TypeError, match="AttentionBlock outside the middle block"):
        still_vae.encoder_reach(vae)


def test_the_chosen_tile_fits_and_costs_least() -> None:
    assert tiling.choose((128, 128), 128 * 128, halo=13) is None
    for most in (10_000, 6_000, 3_000, 1_500):
        tile = tiling.choose((128, 96), most, halo=13)
        assert tile is not None
        assert min(128, tile[0] + 26) * min(96, tile[1] + 26) <= most
    assert tiling.choose((128, 128), 100, halo=13) == (8, 8)
    strips = tiling.choose((128, 96), 8_000, halo=13)
    assert strips is not None and strips[1] == 96 and tiling.count((128, 96), strips) <= 4
    assert tiling.choose((8, 512), 1_500, halo=13) == (8, 128)  # no higher than the picture


def test_tiles_get_smaller_until_they_can_not() -> None:
    tile: tiling.Tile | None = None
    seen = []
    while (tile := tiling.smaller((64, 40), tile)) is not None:
        seen.append(tile)
    assert seen[0] == (32, 40) and seen[-1] == (8, 8) and len(seen) == len(set(seen))
    assert (
        tiling.count((64, 40), None) == 1
        and tiling.count((64, 40), (32, 40)) == 2
        and tiling.count((64, 40), (8, 8)) == 40
    )


def test_only_one_tile_is_held_at_a_time() -> None:
    """The working memory follows the tile, not the picture."""
    seen: list[int] = []

    def function(x: Tensor) -> Tensor:
        seen.append(x.shape[-1] * x.shape[-2])
        return x

    tiling.run_tiled(function, torch.zeros(1, 1, 256, 256), (32, 32), Reach(13, 13))
    assert len(seen) == 64 and max(seen) == 58 * 58
