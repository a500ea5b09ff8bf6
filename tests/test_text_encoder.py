"""The text encoder: equal to the stock forward, in lockstep and streamed, to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from realchar.engine.families.qwen_image_edit import QwenImageEdit
from realchar.engine.text_encoder import Prompt, TextEncoder
from realchar.engine.work import result_of
from realchar.errors import ModelError
from realchar.settings import Offload
from tests.pictures import painting
from tests.streams import LaggingCopies
from tests.tiny import DEMO, copy_base

FOLDER = DEMO / "text_encoder"
GRID = torch.tensor([[1, 8, 12]])
IMAGE_TOKENS = 24


def pixel_values(dtype: torch.dtype = torch.float32) -> Tensor:
    patches = torch.randn(96, 3 * 2 * 14 * 14, generator=torch.Generator().manual_seed(1))
    return patches.to(dtype)


def prompts(encoder: TextEncoder) -> list[Prompt]:
    image = encoder.model.config.image_token_id
    made = []
    for length, seed in ((7, 2), (19, 3)):
        words = torch.randint(10, 200, (length,), generator=torch.Generator().manual_seed(seed))
        ids = torch.cat([words[:3], torch.full((IMAGE_TOKENS,), image), words[3:]])[None]
        made.append(Prompt(ids, (ids == image).int()))
    return made


@torch.inference_mode()
def encode(encoder: TextEncoder, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return result_of(encoder.encode(pixel_values(dtype), GRID, prompts(encoder)))


@torch.inference_mode()
def stock(encoder: TextEncoder, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    found = []
    for prompt in prompts(encoder):
        output = encoder.model(
            input_ids=prompt.ids,
            attention_mask=torch.ones_like(prompt.ids),
            pixel_values=pixel_values(dtype),
            image_grid_thw=GRID,
            mm_token_type_ids=prompt.marks,
        )
        found.append(output.last_hidden_state)
    return found


def resident(dtype: torch.dtype = torch.float32, folder: Path = FOLDER) -> TextEncoder:
    return TextEncoder.load(folder, torch.device("cpu"), dtype)


def streamed(dtype: torch.dtype = torch.float32, folder: Path = FOLDER, lagging: bool = True) -> TextEncoder:
    accelerator = LaggingCopies() if lagging else None
    return TextEncoder.load(folder, torch.device("cpu"), dtype, streamed=True, accelerator=accelerator)


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lockstep_equals_the_stock_forward(dtype: torch.dtype) -> None:
    encoder = resident(dtype)
    expected = stock(encoder, dtype)
    assert same(encode(encoder, dtype), expected)
    assert same(stock(encoder, dtype), expected), "the model is left as it was"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_streamed_equals_resident_pass_after_pass(dtype: torch.dtype) -> None:
    expected = encode(resident(dtype), dtype)
    encoder = streamed(dtype)
    for _ in range(3):
        assert same(encode(encoder, dtype), expected)


def test_only_what_is_no_layer_stays_on_the_device() -> None:
    encoder = streamed()
    encode(encoder)
    held = {name for name, parameter in encoder.model.named_parameters() if parameter.numel()}
    assert held, "the merger and the norms"
    assert not [name for name in held if ".blocks." in name or ".layers." in name or "embed_tokens" in name]
    assert not [name for name, buffer in encoder.model.named_buffers() if buffer.is_meta]


def test_the_picture_is_seen_once_for_all_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = resident()
    calls = []
    merger = encoder.model.visual.merger
    forward = merger.forward
    monkeypatch.setattr(merger, "forward", lambda x: calls.append(1) or forward(x))
    encode(encoder)
    assert len(calls) == 1


@pytest.mark.parametrize("left_after", [0, 1, 3])
def test_it_can_be_left_at_any_layer(left_after: int) -> None:
    encoder = streamed()
    with torch.inference_mode():
        work = encoder.encode(pixel_values(), GRID, prompts(encoder))
        for _ in range(left_after):
            next(work)
        work.close()
    assert same(encode(encoder), encode(resident()))


def test_files_with_the_names_of_later_versions_are_read(tmp_path: Path) -> None:
    folder = copy_base(tmp_path / "base") / "text_encoder"
    file = folder / "model.safetensors"
    tensors = load_file(file)

    def renamed(name: str) -> str:
        return f"model.{name}" if name.startswith("visual.") else name.replace("model.", "model.language_model.", 1)

    save_file({renamed(name): tensor for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    assert same(encode(streamed(folder=folder, lagging=False)), encode(resident()))


@pytest.mark.parametrize(
    "name", ["model.layers.1.mlp.up_proj.weight", "visual.merger.ln_q.weight", "model.embed_tokens.weight"]
)
def test_a_lacking_weight_is_named(tmp_path: Path, name: str) -> None:
    folder = copy_base(tmp_path / "base") / "text_encoder"
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        streamed(folder=folder, lagging=False)


def test_layers_of_different_attention_are_refused(tmp_path: Path) -> None:
    folder = copy_base(tmp_path / "base") / "text_encoder"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["text_config"] |= {
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
        "layer_types": None,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="sliding"):
        resident(folder=folder)


def test_embeddings_of_a_base_are_equal_in_both_modes() -> None:
    found = []
    for offload in (Offload.RESIDENT, Offload.STREAM, Offload.MODEL, Offload.SEQUENTIAL):
        family = QwenImageEdit.load(DEMO, torch.device("cpu"), torch.float32, offload)
        with torch.inference_mode():
            found.append(result_of(family.encode_prompts(painting(64, 96), ["Make it real.", " "])))
    assert all(same(found[0], other) for other in found[1:])
