"""Weights in 8-bit floats with a scale for each output channel, and the layer that multiplies in them.

The scale maps the largest magnitude of a row to the largest number of float8_e4m3fn, so nothing is ever clipped and small
rows keep their digits ("FP8 Formats for Deep Learning", Micikevicius et al. 2022; row-wise as `torch._scaled_mm` takes it).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CODES = torch.float8_e4m3fn
LARGEST = torch.finfo(CODES).max  # 448
TINY = 1e-12  # in place of the scale of a row of zeros
CAPABILITY = (8, 9)  # of cards that multiply in it


@torch.no_grad()
def quantise(weight: Tensor, codes: Tensor, scales: Tensor) -> None:
    """Write a weight (out, in) as `codes` (out, in) and `scales` (out,) float32. Overwrites `weight`, to need no memory.

    The quotient is rounded to the weight's dtype first, which in bfloat16 adds 0.1 % to the error of the codes.
    """
    scales.copy_(torch.linalg.vector_norm(weight, float("inf"), dim=1)).div_(LARGEST).clamp_(min=TINY)
    codes.copy_(weight.div_(scales[:, None]))


@torch.no_grad()
def dequantise(codes: Tensor, scales: Tensor, weight: Tensor) -> None:
    """Write `codes` (out, in) times `scales` (out,) into `weight` (out, in), rounded to its dtype."""
    weight.copy_(codes).mul_(scales[:, None])


def codes_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes (out, in) and scales (out,) float32 of a weight, which is not overwritten: one pass where compiled."""
    scales = (weight.abs().amax(dim=1).float() / LARGEST).clamp(min=TINY)
    return (weight / scales[:, None]).to(CODES), scales


class Kernels:
    """`quantise` and `dequantise`, as a few passes over memory each, or compiled as one or two."""

    def __init__(self, *, compiled: bool = False) -> None:
        self._codes_of = torch.compile(codes_of, dynamic=False) if compiled else None
        self.dequantise = torch.compile(dequantise, dynamic=False) if compiled else dequantise

    def quantise(self, weight: Tensor, codes: Tensor, scales: Tensor) -> None:
        """As the function, up to rounding."""
        if self._codes_of is None:
            quantise(weight, codes, scales)
            return
        for target, value in zip((codes, scales), self._codes_of(weight), strict=True):
            target.copy_(value)


class Fp8Linear(nn.Linear):
    """In place of a linear layer, under the same names: `weight` (out, in) are codes, `scale` (out,) theirs.

    Each token of the input is quantised by a scale of its own. On a card the product is one of 8-bit floats; the CPU
    computes the same product of the same numbers in float32.
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Take over the parameters of `linear`, which hold nothing yet."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = nn.Parameter(linear.weight.data.float(), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        """Return (…, out) of an input (…, in), in its dtype."""
        tokens = input.reshape(-1, input.shape[-1])
        scales = (tokens.abs().amax(dim=-1, keepdim=True) / LARGEST).clamp(min=TINY)
        codes = (tokens / scales).to(CODES)
        product = _product if input.is_cuda else _emulated
        return product(codes, scales.float(), self.weight, self.scale, self.bias, input.dtype).view(
            *input.shape[:-1], -1
        )


def _product(codes: Tensor, scales: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return torch._scaled_mm(
        codes, weight.t(), scales, scale[None], bias=bias.to(dtype), out_dtype=dtype, use_fast_accum=True
    )


def _emulated(codes: Tensor, scales: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.addcmul(bias.float(), F.linear(codes.float(), weight.float()) * scales, scale).to(dtype)
