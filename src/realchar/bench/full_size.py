"""The architecture of Qwen-Image-Edit-2511 at full size, as configs; its VAE is the class's own default. No torch."""

from __future__ import annotations

from typing import Any

TRANSFORMER: dict[str, Any] = {
    "num_layers": 60,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 3584,
    "in_channels": 64,
    "out_channels": 16,
    "patch_size": 2,
    "axes_dims_rope": (16, 56, 56),
    "zero_cond_t": True,
}
TEXT: dict[str, Any] = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1000000.0},
}
VISION: dict[str, Any] = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 3584,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "window_size": 112,
}
