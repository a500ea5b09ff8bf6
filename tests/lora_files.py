"""LoRA files in every public layout, with what each must make of the weights, computed by hand in float64."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

RANK = 4
MODULES = {  # of the demo base: one of each kind of shape, and one of modulation
    "transformer_blocks.0.attn.to_q": (192, 192),
    "transformer_blocks.1.attn.to_out.0": (192, 192),
    "transformer_blocks.1.img_mlp.net.2": (192, 768),
    "transformer_blocks.2.txt_mlp.net.0.proj": (768, 192),
    "transformer_blocks.3.img_mod.1": (1152, 192),
}
Tensors = dict[str, Tensor]
Hand = Callable[[Tensor], Tensor]  # pristine weight → merged weight, float64


@dataclass
class Written:
    """Tensors of a file and the parameters that they change; `metadata` goes into its header."""

    tensors: Tensors = field(default_factory=dict)
    changes: dict[str, Hand] = field(default_factory=dict)
    metadata: dict[str, str] | None = None


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.1


def added(delta: Tensor) -> Hand:
    return lambda weight: weight.double() + delta


def _low_rank(
    down: str,
    up: str,
    *,
    alpha: str | None = None,
    value: Tensor | float | None = None,
    scale: float = 1.0,
    flat: bool = False,
    dtype: torch.dtype = torch.float32,
    sides: tuple[int, ...] = (),
    metadata: dict[str, str] | None = None,
) -> Callable[[], Written]:
    """Return what writes plain LoRA factors; `{}` in a key stands for the module."""

    def write() -> Written:
        written = Written(metadata=metadata)
        for i, (module, (out, into)) in enumerate(MODULES.items()):
            a, b = draw(2 * i, RANK, into).to(dtype), draw(2 * i + 1, out, RANK).to(dtype)
            name = module.replace(".", "_") if flat else module
            written.tensors |= {down.format(name): a.view(*a.shape, *sides), up.format(name): b.view(*b.shape, *sides)}
            if alpha is not None:
                written.tensors[alpha.format(name)] = torch.as_tensor(value)
            written.changes[f"{module}.weight"] = added(scale * b.double() @ a.double())
        return written

    return write


def _loha(*, core: bool = False) -> Written:
    written = Written()
    for i, (module, (out, into)) in enumerate(MODULES.items()):
        a = [draw(10 * i + j, out, RANK) for j in range(2)]
        b = [draw(10 * i + 2 + j, RANK, into) for j in range(2)]
        t = [20 * draw(10 * i + 4 + j, RANK, RANK) if core else torch.eye(RANK) for j in range(2)]
        name = "lycoris_" + module.replace(".", "_")
        for j in range(2):
            written.tensors[f"{name}.hada_w{j + 1}_a"] = (a[j].T if core else a[j]).contiguous()
            written.tensors[f"{name}.hada_w{j + 1}_b"] = b[j]
            if core:
                written.tensors[f"{name}.hada_t{j + 1}"] = t[j].view(RANK, RANK, 1, 1)
        written.tensors[f"{name}.alpha"] = torch.tensor(2.0)
        product = (a[0] @ t[0] @ b[0]).double() * (a[1] @ t[1] @ b[1]).double()
        written.changes[f"{module}.weight"] = added(0.5 * product)
    return written


def _lokr(*, first: bool, second: bool, prefix: str = "lycoris_") -> Written:
    """Write Kronecker factors; first, second: whether these are products themselves."""
    written = Written()
    for i, (module, (out, into)) in enumerate(MODULES.items()):
        w = [draw(30 * i, 8, 4), draw(30 * i + 1, out // 8, into // 4)]
        name = prefix + module.replace(".", "_")
        for j, split in enumerate((first, second)):
            if split:
                a, b = 5 * draw(30 * i + 2 + j, w[j].shape[0], RANK), draw(30 * i + 4 + j, RANK, w[j].shape[1])
                w[j] = a @ b
                written.tensors |= {f"{name}.lokr_w{j + 1}_a": a, f"{name}.lokr_w{j + 1}_b": b}
            else:
                written.tensors[f"{name}.lokr_w{j + 1}"] = w[j]
        whole = not (first or second)
        written.tensors[f"{name}.alpha"] = torch.tensor(1e10 if whole else 2.0)
        scale = 1.0 if whole else 0.5
        written.changes[f"{module}.weight"] = added(scale * torch.kron(w[0].double(), w[1].double()))
    return written


def _dora(key: str, shape: Callable[[int, int], tuple[int, ...]], dim: int = 1) -> Written:
    written = _low_rank("transformer.{}.lora_A.weight", "transformer.{}.lora_B.weight")()
    for i, (module, (out, into)) in enumerate(MODULES.items()):
        length = (out, into)[1 - dim]
        magnitude = 1 + draw(50 + i, length).abs()
        written.tensors[f"transformer.{module}.{key}"] = magnitude.view(*shape(out, into))
        wide = magnitude.double().view(-1, 1) if dim == 1 else magnitude.double().view(1, -1)
        lora = written.changes[f"{module}.weight"]

        def hand(weight: Tensor, lora: Hand = lora, wide: Tensor = wide) -> Tensor:
            moved = lora(weight)
            return wide * moved / moved.norm(dim=dim, keepdim=True)

        written.changes[f"{module}.weight"] = hand
    return written


def _full() -> Written:
    """Write patches of whole weights, biases and norms, as comparing two checkpoints makes them."""
    written = Written()
    for i, (module, (out, into)) in enumerate(MODULES.items()):
        name = f"diffusion_model.{module}"
        if i % 2:
            value = draw(60 + i, out, into)
            written.tensors[f"{name}.set_weight"] = value
            written.changes[f"{module}.weight"] = lambda _, value=value: value.double()  # type: ignore[misc]
        else:
            written.tensors[f"{name}.diff"] = draw(60 + i, out, into)
            written.changes[f"{module}.weight"] = added(draw(60 + i, out, into).double())
        written.tensors[f"{name}.diff_b"] = draw(70 + i, out)
        written.changes[f"{module}.bias"] = added(draw(70 + i, out).double())
    for module, length in (("transformer_blocks.0.attn.norm_q", 32), ("txt_norm", 128)):
        written.tensors[f"diffusion_model.{module}.diff"] = draw(80, length)
        written.changes[f"{module}.weight"] = added(draw(80, length).double())
    return written


def _bias() -> Written:
    written = _low_rank(
        "transformer.{}.lora_A.weight",
        "transformer.{}.lora_B.weight",
        alpha="transformer.{}.alpha",
        value=2.0,
        scale=0.5,
    )()
    for i, (module, (out, _)) in enumerate(MODULES.items()):
        written.tensors[f"transformer.{module}.lora_B.bias"] = draw(90 + i, out)
        written.changes[f"{module}.bias"] = added(0.5 * draw(90 + i, out).double())
    return written


def _mid() -> Written:
    written = Written()
    for i, (module, (out, into)) in enumerate(MODULES.items()):
        a, m, b = draw(100 + i, RANK, into), draw(110 + i, RANK, RANK), draw(120 + i, out, RANK)
        name = "lora_unet_" + module.replace(".", "_")
        written.tensors |= {
            f"{name}.lora_down.weight": a.view(*a.shape, 1, 1),
            f"{name}.lora_mid.weight": m.view(*m.shape, 1, 1),
        }
        written.tensors[f"{name}.lora_up.weight"] = b.view(*b.shape, 1, 1)
        written.changes[f"{module}.weight"] = added((b @ m @ a).double())
    return written


def _mixed_ranks() -> Written:
    written = _low_rank("{}.lora_A.weight", "{}.lora_B.weight")()
    module, (out, into) = next(iter(MODULES.items()))
    a, b = draw(130, 3 * RANK, into), draw(131, out, 3 * RANK)
    written.tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    written.changes[f"{module}.weight"] = added(b.double() @ a.double())
    return written


def _peft_metadata(**config: object) -> dict[str, str]:
    return {"lora_adapter_metadata": json.dumps({f"transformer.{key}": value for key, value in config.items()})}


AB = ("transformer.{}.lora_A.weight", "transformer.{}.lora_B.weight")
KOHYA = ("lora_unet_{}.lora_down.weight", "lora_unet_{}.lora_up.weight")

LAYOUTS: Mapping[str, Callable[[], Written]] = {
    "diffusers": _low_rank(*AB),
    "bare": _low_rank("{}.lora_A.weight", "{}.lora_B.weight"),
    "PEFT": _low_rank("base_model.model.{}.lora_A.weight", "base_model.model.{}.lora_B.weight"),
    "PEFT, default": _low_rank(
        "base_model.model.{}.lora_A.default.weight", "base_model.model.{}.lora_B.default.weight"
    ),
    "PEFT, named": _low_rank("transformer.{}.lora_A.real.skin.weight", "transformer.{}.lora_B.real.skin.weight"),
    "PEFT, compiled": _low_rank(
        "base_model.model._orig_mod.{}.lora_A.weight", "base_model.model._orig_mod.{}.lora_B.weight"
    ),
    "compiled": _low_rank("_orig_mod.{}.lora_A.weight", "_orig_mod.{}.lora_B.weight"),
    "base layer": _low_rank("transformer.{}.base_layer.lora_A.weight", "transformer.{}.base_layer.lora_B.weight"),
    "no .weight": _low_rank("diffusion_model.{}.lora_A", "diffusion_model.{}.lora_B"),
    "ComfyUI": _low_rank("diffusion_model.{}.lora_A.weight", "diffusion_model.{}.lora_B.weight"),
    "ComfyUI, model": _low_rank("model.diffusion_model.{}.lora_down.weight", "model.diffusion_model.{}.lora_up.weight"),
    "ComfyUI, alpha": _low_rank(*AB, alpha="transformer.{}.alpha", value=[8.0], scale=2.0),
    "lightx2v": _low_rank("{}.lora_down.weight", "{}.lora_up.weight", alpha="{}.alpha", value=0.5, scale=0.125),
    "kohya": _low_rank(*KOHYA, alpha="lora_unet_{}.alpha", value=2.0, scale=0.5, flat=True),
    "kohya, no alpha": _low_rank(*KOHYA, flat=True),
    "kohya, metadata": _low_rank(
        *KOHYA, flat=True, metadata={"ss_network_alpha": "1.0", "ss_network_dim": "4"}, scale=0.25
    ),
    "kohya, bf16": _low_rank(
        *KOHYA,
        alpha="lora_unet_{}.alpha",
        value=torch.tensor(2.0, dtype=torch.bfloat16),
        scale=0.5,
        flat=True,
        dtype=torch.bfloat16,
    ),
    "kohya, fp16, whole alpha": _low_rank(
        *KOHYA, alpha="lora_unet_{}.alpha", value=torch.tensor(8), scale=2.0, flat=True, dtype=torch.float16
    ),
    "kohya, alpha 0": _low_rank(*KOHYA, alpha="lora_unet_{}.alpha", value=0.0, flat=True),
    "kohya, convolutions": _low_rank(*KOHYA, flat=True, sides=(1, 1)),
    "fp8": _low_rank(*AB, dtype=torch.float8_e4m3fn),
    "fp8, alpha too": _low_rank(
        *AB,
        dtype=torch.float8_e5m2,
        alpha="transformer.{}.alpha",
        value=torch.tensor(2.0, dtype=torch.float8_e5m2),
        scale=0.5,
    ),
    "OneTrainer": _low_rank(
        "transformer.{}.lora_down.weight",
        "transformer.{}.lora_up.weight",
        alpha="transformer.{}.alpha",
        value=1.0,
        scale=0.25,
    ),
    "OneTrainer, flat": _low_rank(
        "lora_transformer_{}.lora_down.weight", "lora_transformer_{}.lora_up.weight", flat=True
    ),
    "LyCORIS": _low_rank("lycoris_{}.lora_down.weight", "lycoris_{}.lora_up.weight", flat=True),
    "old diffusers": _low_rank("transformer.{}.lora.down.weight", "transformer.{}.lora.up.weight"),
    "older diffusers": _low_rank("{}.lora_linear_layer.down.weight", "{}.lora_linear_layer.up.weight"),
    "diffusers, metadata": _low_rank(*AB, metadata=_peft_metadata(r=4, lora_alpha=8), scale=2.0),
    "rslora": _low_rank(*AB, metadata=_peft_metadata(r=4, lora_alpha=8, use_rslora=True), scale=4.0),
    "mixed ranks": _mixed_ranks,
    "bias": _bias,
    "LoCon core": _mid,
    "LoHa": _loha,
    "LoHa, core": lambda: _loha(core=True),
    "LoKr": lambda: _lokr(first=False, second=False),
    "LoKr, first": lambda: _lokr(first=True, second=False),
    "LoKr, second": lambda: _lokr(first=False, second=True, prefix="lora_unet_"),
    "LoKr, both": lambda: _lokr(first=True, second=True),
    "DoRA, PEFT": lambda: _dora("lora_magnitude_vector", lambda out, _: (out,)),
    "DoRA, PEFT named": lambda: _dora("lora_magnitude_vector.default.weight", lambda out, _: (out,)),
    "DoRA, kohya": lambda: _dora("dora_scale", lambda out, _: (out, 1)),
    "DoRA, columns": lambda: _dora("dora_scale", lambda _, into: (1, into), dim=0),
    "full patch": _full,
}


def write(path: Path, layout: str) -> Written:
    """Write a file in a layout; returns what it must do."""
    written = LAYOUTS[layout]()
    save_file(
        {key: tensor.clone(memory_format=torch.contiguous_format) for key, tensor in written.tensors.items()},
        path,
        written.metadata,
    )
    return written
