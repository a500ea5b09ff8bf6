"""The miniature's configs: the real base's classes, small. Sizes are chosen for a 2-core CPU."""

from __future__ import annotations

from typing import Any

SIDE = 352  # pixels; smaller pictures are enlarged to it, also the pairs, for an eye fills hardly a token at 256
TEXT_WIDTH = 128  # width of the text encoder and so the transformer's joint_attention_dim

TRANSFORMER: dict[str, Any] = {
    "patch_size": 2,
    "in_channels": 64,
    "out_channels": 16,
    "num_layers": 8,
    "attention_head_dim": 32,
    "num_attention_heads": 6,
    "joint_attention_dim": TEXT_WIDTH,
    "guidance_embeds": False,
    "axes_dims_rope": (8, 12, 12),
    "zero_cond_t": True,
}

VAE: dict[str, Any] = {
    "base_dim": 32,
    "z_dim": 16,
    "dim_mult": [1, 2, 3, 3],
    "num_res_blocks": 1,
    "attn_scales": [],
    "temperal_downsample": [False, True, True],
}

# As the real base's scheduler_config.json.
SCHEDULER: dict[str, Any] = {
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "base_image_seq_len": 256,
    "max_image_seq_len": 8192,
    "shift_terminal": 0.02,
    "time_shift_type": "exponential",
}


def text_encoder(vocab_size: int, ids: dict[str, int]) -> dict[str, Any]:
    """Return the Qwen2.5-VL config as a dict; `ids` are the token ids of the vision marks."""
    return {
        "text_config": {
            "vocab_size": vocab_size,
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": 2 * TEXT_WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1000000.0},
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        "vision_config": {
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "out_hidden_size": TEXT_WIDTH,
            "fullatt_block_indexes": [1],
            "window_size": 112,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": True,
    }


SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
