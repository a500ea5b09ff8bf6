"""Other models that people make LoRA files for, by the names of their modules, so that a wrong base is called by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable

# In order: the first row that a module's name matches tells the model. Names are written with underscores for dots.
MODELS = (
    (
        "Stable Diffusion XL",
        r"lora_te2_|text_encoder_2_|(?:input|middle|output)_blocks?_.*transformer_blocks_\d_attn[12]",
    ),
    ("Stable Diffusion", r"(?:^|_)(?:down|up|mid|input|middle|output)_blocks?_"),
    ("HunyuanVideo", r"individual_token_refiner|token_refiner_blocks|_blocks_\d+_(?:img|txt)_mlp_fc\d"),
    ("Chroma", r"distilled_guidance_layer"),
    ("Flux", r"(?:^|_)(?:double_blocks|single_blocks|single_transformer_blocks)_\d+_"),
    ("HiDream", r"(?:double|single)_stream_blocks"),
    ("AuraFlow", r"joint_transformer_blocks|double_layers_\d+_"),
    ("Stable Diffusion 3", r"joint_blocks_|transformer_blocks_\d+_(?:ff_context|norm1_context)"),
    ("Wan", r"(?:^|(?<!transformer)_)blocks_\d+_(?:self_attn|cross_attn|ffn|attn[12])_"),
    ("Z-Image or Lumina", r"(?:^|_)(?:layers|noise_refiner|context_refiner)_\d+_(?:attention|feed_forward|adaLN)"),
    ("Cosmos", r"(?:^|_)blocks_\d+_(?:adaln_modulation|mlp_layer)"),
    ("LTX-Video, PixArt or CogVideoX", r"transformer_blocks_\d+_(?:attn1|attn2|ff)_"),
    ("ControlNet", r"controlnet_|control_model_"),
)
_TABLE = tuple((name, re.compile(pattern)) for name, pattern in MODELS)


def model_of(modules: Iterable[str]) -> str | None:
    """Return the other model that these names, as a file writes them, belong to; None where none is known."""
    flat = [name.replace(".", "_") for name in modules]
    return next((name for name, pattern in _TABLE if any(pattern.search(module) for module in flat)), None)
