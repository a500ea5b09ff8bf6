"""What is refused, what is warned of, and why: in a sentence, before a job is spent on it."""

from __future__ import annotations

import json
import os
import random
import re
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from safetensors.torch import save_file
from torch import Tensor

from realchar.engine.blocks import empty_transformer
from realchar.engine.lora import load_adapter
from realchar.engine.merge import set_patched
from realchar.lora import Report, examine, target_in
from realchar.lora.keys import resolve
from realchar.lora.target import Target, target_of
from tests.lora_files import LAYOUTS, write
from tests.tiny import DEMO

TARGET = target_in(DEMO / "transformer")
Q, TEXT = "transformer_blocks.0.attn.to_q", "text_encoder.model.layers.0.self_attn.q_proj"


def pair(
    module: str = Q, out: int = 192, into: int = 192, prefix: str = "transformer.", fill: float = 0.1
) -> dict[str, Tensor]:
    return {
        f"{prefix}{module}.lora_A.weight": torch.full((4, into), fill),
        f"{prefix}{module}.lora_B.weight": torch.full((out, 4), fill),
    }


def report(folder: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> Report:
    path = folder / "x_100.safetensors"
    save_file(tensors, path, metadata)
    return examine(path, TARGET)


def test_the_target_is_the_models_own_list() -> None:
    for config in ({}, {"num_layers": 3, "num_attention_heads": 5, "joint_attention_dim": 96, "out_channels": None}):
        given = QwenImageTransformer2DModel.load_config(DEMO / "transformer") | config
        with torch.device("meta"):
            model = QwenImageTransformer2DModel.from_config(given)
        assert target_of(model.config).parameters == {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert target_of(empty_transformer(DEMO / "transformer").config).parameters == TARGET.parameters


def test_no_two_modules_look_alike_with_underscores() -> None:
    assert len(TARGET.flat) == len(TARGET.modules)
    for module in TARGET.modules:
        for prefix in ("", "transformer.", "diffusion_model.", "base_model.model.", "module._orig_mod."):
            assert resolve(prefix + module, TARGET) == module
        for prefix in ("lora_unet_", "lycoris_", "lora_transformer_"):
            assert resolve(prefix + module.replace(".", "_"), TARGET) == module
    for name in ("", ".", "_", "transformer_blocks.99.attn.to_q", "blocks_0_attn_to_q", "transformer_blocks.0.attn"):
        assert resolve(name, TARGET) is None


def test_attention_processors_of_old_diffusers_are_read(tmp_path: Path) -> None:
    name, short = "transformer_blocks.0.attn.processor.to_q_lora", "transformer_blocks.1.attn.processor.to_out_lora"
    tensors = {
        f"{each}.{side}.weight": torch.ones(s)
        for each in (name, short)
        for side, s in (("down", (4, 192)), ("up", (192, 4)))
    }
    found = report(tmp_path, tensors)
    assert [piece.module for piece in found.pieces] == [
        Q,
        "transformer_blocks.1.attn.to_out.0",
    ] and found.action == "accept"


FOREIGN = {
    "Stable Diffusion XL": "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q",
    "Stable Diffusion": "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
    "Flux": "diffusion_model.double_blocks.0.img_attn.qkv",
    "Flux, diffusers": "transformer.single_transformer_blocks.3.attn.to_q",
    "HunyuanVideo": "lora_unet_double_blocks_0_img_mlp_fc1",
    "Stable Diffusion 3": "transformer.joint_blocks.0.x_block.attn.qkv",
    "Wan": "diffusion_model.blocks.0.self_attn.q",
    "Z-Image": "diffusion_model.layers.0.attention.to_q",
    "LTX-Video": "transformer.transformer_blocks.0.attn1.to_q",
    "HiDream": "diffusion_model.double_stream_blocks.0.block.attn1.to_q",
    "Chroma": "lora_unet_distilled_guidance_layer_in_proj",
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "beside modules that fit"])
def test_another_base_is_called_by_its_name(tmp_path: Path, name: str, mixed: bool) -> None:
    """Also where it shares names and widths with ours, as Flux in diffusers' layout does."""
    found = report(tmp_path, pair(FOREIGN[name], prefix="") | (pair() if mixed else {}))
    assert (found.action, found.code) == ("reject", "lora_base")
    assert f"made for {name.partition(',')[0]}" in found.reason


B, A = f"transformer.{Q}.lora_B.weight", f"transformer.{Q}.lora_A.weight"
REFUSED: dict[str, tuple[dict[str, Tensor], str]] = {
    "text encoder only": (pair(TEXT, prefix=""), "text encoder only"),
    "kohya text encoder only": (pair("lora_te_model_layers_0_mlp", prefix=""), "text encoder only"),
    "unknown modules": (pair("some.other.model"), "none of its 1 modules is in this base"),
    "other width": (
        pair(out=3072, into=3072),
        "does not fit this base: factors 3072x4 and 4x3072 on a weight of 192x192",
    ),
    "other rank": (pair() | {B: torch.ones(192, 5)}, "does not fit"),
    "lone factor": ({A: torch.ones(4, 192)}, "lacks a factor"),
    "lone hada": ({f"lycoris_{Q.replace('.', '_')}.hada_w1_a": torch.ones(192, 4)}, "lacks a factor"),
    "lokr that multiplies to another size": (
        {f"{Q}.lokr_w1": torch.ones(8, 8), f"{Q}.lokr_w2": torch.ones(8, 8)},
        "factors 8x8 and 8x8 on a weight of 192x192",
    ),
    "magnitude of another size": (pair() | {f"transformer.{Q}.dora_scale": torch.ones(7, 1)}, "magnitude of 7x1"),
    "bias of another size": (pair() | {f"transformer.{Q}.lora_B.bias": torch.ones(7)}, "bias of"),
    "patch of another size": ({f"diffusion_model.{Q}.diff": torch.ones(192, 7)}, "patch of 192x7"),
    "whole numbers": ({A: torch.ones(4, 192, dtype=torch.int32), B: torch.ones(192, 4)}, "is of the kind I32"),
    "no rank": ({A: torch.ones(0, 192), B: torch.ones(192, 0)}, "holds no numbers"),
    "NaN": (pair() | {B: torch.full((192, 4), float("nan"))}, "no numbers"),
    "infinite where it is summed": (
        {key: tensor.double() * 1e300 for key, tensor in pair().items()},
        "values that are no numbers",
    ),
    "a product that overflows": (pair(fill=1e25), "overflows: up to"),
    "an alpha that overflows": (
        pair() | {f"transformer.{Q}.alpha": torch.tensor(1e300, dtype=torch.float64)},
        "overflows",
    ),
    "a product that overflows under a magnitude": (
        pair(fill=1e25) | {f"transformer.{Q}.dora_scale": torch.ones(192, 1)},
        "overflows",
    ),
    "a magnitude that overflows": (pair() | {f"transformer.{Q}.dora_scale": torch.full((192, 1), 3e38)}, "overflows"),
    "infinite": (pair() | {A: torch.full((4, 192), float("-inf"))}, "no numbers"),
    "NaN alpha": (pair() | {f"transformer.{Q}.alpha": torch.tensor(float("nan"))}, "alpha of .* is no number"),
    "two alphas": (pair() | {f"transformer.{Q}.alpha": torch.tensor([1.0, 2.0])}, "alpha of .* is no number"),
    "same module twice": (pair() | pair(prefix="diffusion_model."), "twice"),
    "OFT": ({f"transformer.{Q}.oft_blocks": torch.ones(2, 4, 4)}, "is OFT"),
    "embedding": ({"clip_g": torch.ones(2, 8), "clip_l": torch.ones(2, 8)}, "is an embedding"),
    "whole weights": ({f"{Q}.weight": torch.ones(192, 192)}, "whole weights of a model"),
    "whole weights of Flux": (
        {"double_blocks.0.img_attn.qkv.weight": torch.ones(3, 3)},
        r"whole weights of a model \(Flux\)",
    ),
    "nonsense": ({"hello": torch.ones(3)}, "match no known layout"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cant_be_used_is_refused_with_the_reason(tmp_path: Path, what: str) -> None:
    tensors, sentence = REFUSED[what]
    found = report(tmp_path, tensors)
    assert found.action == "reject" and found.code.startswith("lora_") and found.pieces == ()
    assert re.search(sentence, found.reason), found.reason
    assert found.reason.startswith("LoRA 'x_100.safetensors' ") and found.reason.endswith(".")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])  # fmt: skip
def test_values_are_looked_at_in_every_width(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {key: tensor.to(dtype) for key, tensor in pair().items()}
    assert report(tmp_path, tensors).action == "accept"
    bad = tensors[B].float()
    bad[191, 3] = float("nan")
    assert report(tmp_path, tensors | {B: bad.to(dtype)}).code == "lora_nan"
    zero = report(tmp_path, tensors | {B: torch.full((192, 4), -0.0).to(dtype)})
    assert zero.action == "warn" and "adds nothing" in zero.reason


WARNED: dict[str, tuple[dict[str, Tensor], dict[str, str] | None, str]] = {
    "a deeper model's": (pair() | pair("transformer_blocks.99.attn.to_q"), None, "lacks 1 of its 2 modules"),
    "text encoder too": (pair() | pair(TEXT, prefix=""), None, "also changes the text encoder, in 1 place"),
    "training state": (pair() | {"optimizer.step": torch.ones(1)}, None, "1 key that is no part of a LoRA"),
    "alpha 0": (pair() | {f"transformer.{Q}.alpha": torch.tensor(0)}, None, "alpha of 0 in 1 module"),
    "bad metadata": (pair(), {"lora_adapter_metadata": "[" * 5000}, "scale in its metadata that can't be read"),
    "untrained": (pair(fill=0.0), None, "adds nothing"),
    "far too large": (pair(fill=1e5), None, "values so large that pictures will hardly come out (up to 4e+10"),
    "a huge alpha": (pair() | {f"transformer.{Q}.alpha": torch.tensor(3e10)}, None, "values so large"),
    "a scale that is no number": (pair(), {"ss_network_alpha": "abc"}, "scale in its metadata that can't be read"),
    "a scale that is NaN": (pair(), {"lora_adapter_metadata": '{"lora_alpha": NaN}'}, "can't be read"),
    "a tiny alpha": (pair() | {f"transformer.{Q}.alpha": torch.tensor(1e-44)}, None, "adds nothing"),
    "as good as zero": (pair(fill=1e-20), None, "adds nothing"),
    "alpha of nothing": (pair() | {"lora_unet_x.alpha": torch.ones(1)}, None, "no part of a LoRA"),
}


@pytest.mark.parametrize("what", WARNED)
def test_what_is_odd_is_told_and_used(tmp_path: Path, what: str) -> None:
    tensors, metadata, sentence = WARNED[what]
    found = report(tmp_path, tensors, metadata)
    assert found.action == "warn" and sentence in found.reason and found.matched == 1


def test_a_part_that_adds_nothing_is_noted_only(tmp_path: Path) -> None:
    found = report(tmp_path, pair() | pair("transformer_blocks.1.attn.to_q", fill=0.0))
    assert found.action == "accept" and found.notes == (
        "1 of its 2 modules add nothing: all of their values are zero or as good as that.",
    )


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"lora_alpha": 16, "r": 4}, 4.0),
        ({"lora_alpha": 16, "r": 4, "use_rslora": True}, 8.0),
        ({"lora_alpha": 4, "alpha_pattern": {"attn.to_q": 2}}, 0.5),
        ({"lora_alpha": 4, "alpha_pattern": {"(a+)+$": 2}}, 1.0),  # never run as a pattern: it could take for ever
        ({"lora_alpha": "1e400"}, 1.0),
        ({"lora_alpha": True}, 1.0),
    ],
)
def test_pefts_file_beside_decides_the_scale(tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    (piece,) = report(tmp_path, pair(prefix="base_model.model.")).pieces
    assert piece.scale == scale


CONTAINERS = {
    "empty": (b"", "is empty"),
    "zeros": (bytes(5000), "is empty"),
    "web page": (b"\n<!DOCTYPE html><html><body>Sign in</body></html>" * 20, "is a web page"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "is a pointer to a file"),
    "zip": (b"PK\x03\x04" + bytes(range(1, 200)), "is a zip or a PyTorch file"),
    "pickle": (b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01" + b"\xff" * 40, "is a PyTorch file"),
    "json": (b'{"error": "not found", "status": 404, "more": "text"}', "is a text"),
    "cut header": (struct.pack("<Q", 5000) + b'{"a', "no whole header"),
    "huge header": (struct.pack("<Q", 2**60) + b"{}", "no whole header"),
    "no object": (struct.pack("<Q", 2) + b"[]", "no whole header"),
    "cut header that begins like a pickle": (struct.pack("<Q", 0x280) + b'{"a', "no whole header"),
    "cut header that begins like a page": (struct.pack("<Q", 0x213C) + b'{"a', "no whole header"),
    "bad row behind what looks like a pickle": (
        struct.pack("<Q", 0x80) + b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}'.ljust(0x80) + bytes(4),
        "not of the size that its shape says",
    ),
    "large header": (struct.pack("<Q", 17 * 2**20) + bytes(17 * 2**20), "a header of 17 MiB, and 16 are possible"),
    "no tensors": (struct.pack("<Q", 2) + b"{}", "holds no tensors"),
}


@pytest.mark.parametrize("what", CONTAINERS)
def test_what_is_no_safetensors_is_called_by_its_name(tmp_path: Path, what: str) -> None:
    content, sentence = CONTAINERS[what]
    file = tmp_path / "x_100.safetensors"
    file.write_bytes(content)
    found = examine(file, TARGET)
    assert found.action == "reject" and sentence in found.reason


def test_a_pipe_beside_a_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "adapter_config.json")
    assert report(tmp_path, pair()).action == "accept"


def test_a_download_that_is_not_done_is_told(tmp_path: Path) -> None:
    file = tmp_path / "x_100.safetensors"
    write(file, "kohya")
    file.write_bytes(file.read_bytes()[:-1])
    assert "is cut off" in examine(file, TARGET).reason
    assert "is not there" in examine(tmp_path / "gone.safetensors", TARGET).reason
    (tmp_path / "x.ckpt").write_bytes(b"x")
    assert "never opened" in examine(tmp_path / "x.ckpt", TARGET).reason


def mutated(draw: random.Random, header: dict[str, Any], data: bytes) -> bytes:
    """Return a file with one to four things wrong: in its header's JSON, in the bytes of it, or in its length."""
    keys = list(header)
    for _ in range(draw.randint(1, 4)):
        key = draw.choice(keys)
        row = header.get(key)
        match draw.randrange(9):
            case 0 if isinstance(row, dict):
                row["shape"] = draw.choice(
                    [[], [2**63], [-1, 4], ["a"], None, [4] * 40, {}, [1e400], [0, 5], [[4]], "x"]
                )
            case 1 if isinstance(row, dict):
                row["data_offsets"] = draw.choice(
                    [[0], [2**62, 2**63], [9, 3], None, ["a", "b"], [-5, 5], 7, [0, 1e308]]
                )
            case 2 if isinstance(row, dict):
                row["dtype"] = draw.choice(["F99", None, 5, "F64", "I8", "BOOL", "f32", "F4", [], "U64"])
            case 3:
                header.pop(key, None)
            case 4:
                name = draw.choice([".", "", "a" * 100_000, "\x00", "\ud800", "lora_unet_", f"{key}.weight", f"{key}."])
                header[draw.choice([name, key[: draw.randrange(len(key) + 1)], key[::-1], key.replace(".", "_")])] = row
            case 5:
                header[key] = draw.choice([None, [], 5, "x", {}, {"dtype": "F32"}, True])
            case 6:
                header["__metadata__"] = draw.choice(
                    [None, 5, [], {"lora_adapter_metadata": "[" * 9000}, {"a": {}}, {"x": "y" * 10**5}]
                )
            case 7:
                header[key.replace("lora_", draw.choice(["hada_w1_", "lokr_", "oft_", "lora_B.default."]))] = row
            case _:
                header[f"{key}.{draw.choice(['alpha', 'dora_scale', 'diff', 'set_weight', 'lora_mid.weight'])}"] = row
    text = bytearray(json.dumps(header).encode("ascii"))
    if draw.random() < 0.3:
        for _ in range(draw.randint(1, 6)):
            text[draw.randrange(len(text))] = draw.randrange(256)
    length = len(text) if draw.random() < 0.95 else draw.choice([0, 1, 2**63, 2**64 - 1, len(text) // 2, len(text) * 2])
    body = data[: draw.randrange(len(data))] if draw.random() < 0.1 else data
    return struct.pack("<Q", length) + bytes(text) + body


def survives(folder: Path, seed: int, number: int, target: Target = TARGET) -> dict[str, int]:
    """Examine mutated files; returns how often each action came out."""
    draw = random.Random(seed)
    layouts = list(LAYOUTS)
    for layout in layouts:
        write(folder / f"{layout}.safetensors", layout)
    whole = {layout: (folder / f"{layout}.safetensors").read_bytes() for layout in layouts}
    actions = dict.fromkeys(("accept", "warn", "reject"), 0)
    file = folder / "mutated.safetensors"
    for _ in range(number):
        content = whole[draw.choice(layouts)]
        length = struct.unpack("<Q", content[:8])[0]
        file.write_bytes(mutated(draw, json.loads(content[8 : 8 + length]), content[8 + length :]))
        began = time.monotonic()
        found = examine(file, target)
        assert time.monotonic() - began < 5
        assert found.reason.startswith("LoRA 'mutated.safetensors' ") and found.reason.endswith(".")
        assert len(found.reason) < 1000 and (found.action == "reject") == (not found.pieces)
        json.dumps(found.to_json())
        if found.pieces:  # what is accepted can be added
            patches = load_adapter(file, target, torch.device("cpu"))
            name = min(patches)
            weight = torch.zeros(target.parameters[name])
            set_patched(weight, weight, patches[name])
            assert weight.isfinite().all()
        actions[found.action] += 1
    return actions


def test_damaged_headers_are_a_sentence_never_a_crash(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        actions = survives(tmp_path, seed=1, number=300)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    assert all(actions.values()), actions


@pytest.mark.slow
def test_ten_thousand_damaged_headers(tmp_path: Path) -> None:
    actions = survives(tmp_path, seed=2, number=10_000)
    assert all(actions.values()), actions
