"""LoRA files: what is read, what is refused, that the effect is the hand-merged one, and that removing is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from realchar.catalog import load_base
from realchar.engine.families.qwen_image_edit import QwenImageEdit
from realchar.engine.lora import _buffer, load_adapter
from realchar.engine.merge import Patch, set_patched
from realchar.errors import ModelError
from realchar.lora import target_in
from tests.tiny import DEMO

MODULES = ("transformer_blocks.0.attn.to_q", "transformer_blocks.1.img_mlp.net.2", "transformer_blocks.3.img_mod.1")
RANK = 4


@pytest.fixture
def family() -> QwenImageEdit:
    return QwenImageEdit.load(load_base(DEMO).path, torch.device("cpu"), torch.float32)


def weights(family: QwenImageEdit) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in family.transformer.state_dict().items()}


def factors(family: QwenImageEdit, seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name in MODULES:
        out, width = family.transformer.get_submodule(name).weight.shape
        up, down = torch.randn(out, RANK, generator=generator), torch.randn(RANK, width, generator=generator)
        made[name] = (up * 0.1, down * 0.1)
    return made


LAYOUTS = {
    "peft": ("transformer.{}.lora_A.weight", "transformer.{}.lora_B.weight", None),
    "peft-default": ("base_model.model.{}.lora_A.default.weight", "base_model.model.{}.lora_B.default.weight", None),
    "bare": ("{}.lora_A.weight", "{}.lora_B.weight", "{}.alpha"),
    "comfy": ("diffusion_model.{}.lora_down.weight", "diffusion_model.{}.lora_up.weight", "diffusion_model.{}.alpha"),
}


def write(path: Path, family: QwenImageEdit, layout: str = "peft", seed: int = 0, alpha: float = 2.0) -> Path:
    down_key, up_key, alpha_key = LAYOUTS[layout]
    tensors: dict[str, Tensor] = {}
    for name, (up, down) in factors(family, seed).items():
        tensors |= {down_key.format(name): down, up_key.format(name): up}
        if alpha_key:
            tensors[alpha_key.format(name)] = torch.tensor(alpha)
    save_file(tensors, path)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_effect_is_the_hand_merged_one(tmp_path: Path, family: QwenImageEdit, layout: str) -> None:
    before = weights(family)
    path = write(tmp_path / "x.safetensors", family, layout)
    family.adapters.use([(path, 0.5)])
    scale = 0.5 * (2.0 / RANK if LAYOUTS[layout][2] else 1.0)
    for name, tensor in weights(family).items():
        module = name.removesuffix(".weight")
        expected = before[name]
        if module in MODULES and name.endswith(".weight"):
            up, down = factors(family)[module]
            expected = expected + scale * up @ down
            assert (tensor - before[name]).abs().max() > 1e-3
        assert torch.allclose(tensor, expected, atol=1e-6), name


def test_removing_is_exact_however_often(tmp_path: Path, family: QwenImageEdit) -> None:
    before = weights(family)
    one, two = (write(tmp_path / f"{i}.safetensors", family, seed=i) for i in (1, 2))
    for versions in ([(one, 1.0)], [(two, 0.7)], [(one, 1.0), (two, -0.3)], [(two, 1.3)]) * 3:
        family.adapters.use(versions)
    family.adapters.use([])
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(family).items())


def test_two_versions_add_up(tmp_path: Path, family: QwenImageEdit) -> None:
    before = weights(family)
    one, two = (write(tmp_path / f"{i}.safetensors", family, seed=i) for i in (1, 2))
    family.adapters.use([(one, 1.0), (two, 0.5)])
    name = MODULES[0]
    (up1, down1), (up2, down2) = factors(family, 1)[name], factors(family, 2)[name]
    expected = before[f"{name}.weight"] + up1 @ down1 + 0.5 * up2 @ down2
    assert torch.allclose(weights(family)[f"{name}.weight"], expected, atol=1e-6)


def test_a_changed_file_of_the_same_name_is_read_again(tmp_path: Path, family: QwenImageEdit) -> None:
    import os

    path = write(tmp_path / "x.safetensors", family, seed=1)
    family.adapters.use([(path, 1.0)])
    first = weights(family)[f"{MODULES[0]}.weight"]
    write(path, family, seed=2)
    os.utime(path, ns=(1, 1))
    family.adapters.use([(path, 1.0)])
    assert not torch.equal(weights(family)[f"{MODULES[0]}.weight"], first)


def good(family: QwenImageEdit) -> dict[str, Tensor]:
    name = MODULES[0]
    up, down = factors(family)[name]
    return {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"lora_unet_down_blocks_0.hada_w1_a": torch.ones(4, 8)}, "made for Stable Diffusion, not for this base"),
        ({f"{MODULES[0]}.lora_A.weight": torch.ones(4, 999)}, "does not fit"),
        ({f"{MODULES[0]}.lora_A.weight": float("nan")}, "no numbers"),
        ({f"{MODULES[1]}.lora_A.weight": torch.ones(4, 512)}, "lacks a factor"),
        ({"double_blocks.0.img_attn.proj.lora_A.weight": torch.ones(4, 8)}, "made for Flux, not for this base"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_touched(
    tmp_path: Path, family: QwenImageEdit, change: dict[str, Tensor | float], sentence: str
) -> None:
    before = weights(family)
    path = tmp_path / "bad.safetensors"
    tensors = good(family)
    for key, value in change.items():  # a number stands for the right shape filled with it
        tensors[key] = torch.full_like(tensors[key], value) if isinstance(value, float) else value
    save_file(tensors, path)
    with pytest.raises(ModelError, match=sentence):
        family.adapters.use([(path, 1.0)])
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(family).items())


@pytest.mark.parametrize("content", [b"", b"no safetensors at all", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0{}      "])
def test_damaged_files_are_a_sentence(tmp_path: Path, family: QwenImageEdit, content: bytes) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"bad\.safetensors"):
        load_adapter(path, target_in(DEMO / "transformer"), torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 16, 80])
def test_one_patch_is_rounded_once_like_several(dtype: torch.dtype, rank: int) -> None:
    draw = torch.Generator().manual_seed(rank)
    pristine = (torch.randn(192, 128, generator=draw) * 0.02).to(dtype)
    up, down = (torch.randn(*shape, generator=draw).mul(0.1).to(dtype) for shape in ((192, rank), (rank, 128)))

    def patch(strength: float) -> Patch:
        return Patch("lora", {"up": up, "down": down}, 1.0, strength, strength)

    exact = pristine.double() + 0.7 * up.double() @ down.double()
    results = []
    for patches in ([patch(0.7)], [patch(0.3), patch(0.4)]):
        for weight in (pristine.clone(), torch.empty_like(pristine)):
            in_place = len(results) % 2 == 0
            set_patched(weight, weight if in_place else pristine, patches)
            results.append(weight)
    for weight in results:
        error = (weight.double() - exact).abs() / exact.abs().clamp(min=0.01)
        assert error.max() <= torch.finfo(dtype).eps * (0.51 if dtype is torch.bfloat16 else 64)
    assert torch.equal(results[0], results[1]) and torch.equal(results[2], results[3])


def test_where_locking_is_refused_ordinary_memory_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.empty

    def refusing(*args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return original(*args, **options)

    monkeypatch.setattr(torch, "empty", refusing)
    assert _buffer(100, locked=True).shape == (100,)
