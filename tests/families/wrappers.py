"""Tiny configurations of models that wrap a text decoder: their text alone is run. Data alone, see `architectures`."""

from typing import Any

Changes = dict[str, Any]
LLAMA4_VISION = {
    "image_size": 28,
    "patch_size": 14,
    "vision_output_dim": 32,
    "projector_input_dim": 32,
    "projector_output_dim": 32,
}

WRAPPERS: dict[str, tuple[str, str, Changes]] = {
    "gemma3": ("gemma3_text", "uncapped", {"hidden_size": 32, "image_size": 28, "patch_size": 14}),
    "gemma4": ("gemma4_text", "plain", {}),
    "gemma4_unified": ("gemma4_unified_text", "plain", {}),
    "mistral3": ("mistral", "plain", {"image_size": 28, "patch_size": 14, "head_dim": 8}),
    "llama4": ("llama4_text", "plain", LLAMA4_VISION),
    "qwen2_vl": ("qwen2_vl_text", "plain", {"hidden_size": 48, "embed_dim": 32, "depth": 2, "num_heads": 2}),
    "qwen2_5_vl": ("qwen2_5_vl_text", "plain", {"out_hidden_size": 48, "depth": 2, "num_heads": 2}),
    "qwen3_vl": ("qwen3_vl_text", "plain", {"out_hidden_size": 48, "depth": 2, "num_heads": 2}),
    "qwen3_vl_moe": ("qwen3_vl_moe_text", "plain", {"out_hidden_size": 48, "depth": 2, "num_heads": 2}),
    "glm4v": ("glm4v_text", "plain", {"out_hidden_size": 48, "depth": 2, "num_heads": 2, "image_size": 28}),
    "glm46v": ("glm4v_text", "plain", {"out_hidden_size": 48, "depth": 2, "num_heads": 2, "image_size": 28}),
    "qwen3_5": ("qwen3_5_text", "plain", {"out_hidden_size": 48, "depth": 2, "num_heads": 2}),
    "qwen3_5_moe": ("qwen3_5_moe_text", "plain", {"out_hidden_size": 48, "depth": 2, "num_heads": 2}),
}
"""Wrapper → the architecture and variant of its text, values of its vision tower over `VISION`."""

VISION = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [1],
}
"""What every vision tower gets where its configuration has the key."""

WRAPPED_TEXT: dict[str, dict[str, Changes]] = {
    "qwen2_vl_text": {
        "plain": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [2, 2, 2]},
            "use_sliding_window": False,
            "layer_types": None,
        }
    },
    "qwen2_5_vl_text": {
        "plain": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [2, 2, 2]},
            "use_sliding_window": False,
            "layer_types": None,
        }
    },
    "glm4v_text": {
        "plain": {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5000.0,
                "mrope_section": [1, 1, 1],
                "partial_rotary_factor": 0.5,
            }
        }
    },
    "qwen3_vl_text": {
        "plain": {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [2, 3, 3]}}
    },
    "qwen3_vl_moe_text": {
        "plain": {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [2, 3, 3]}}
    },
}
"""Text decoders that exist in wrappers alone."""
