"""The text model inside a configuration of a model with images, audio or video. Torch-free.

Owns: which keys of the whole are the text's as well, and which tensors are not. Never does: know a family.
Called by: the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.models.weight_rules import Ignored, Rename, WeightRule

TEXT: Final = ("text_config", "llm_config", "language_config")
"""Where a whole model's configuration has that of its text."""
SHARED: Final = (
    "tie_word_embeddings",
    "quantization_config",
    "dtype",
    "torch_dtype",
    "eos_token_id",
    "bos_token_id",
    "pad_token_id",
)
"""Keys of the whole that hold for its text; the whole's value counts where both have one."""
OTHER: Final = "vision|visual|image|video|audio|speech|mm_|multi_modal|projector|vit_|boi_|eoi_|boa_|eoa_|spatial_merge"

WRAPPED: Final[tuple[WeightRule, ...]] = (
    Ignored(
        r"(model\.)?(vision_tower|vision_model|visual|vision_embed_tokens|multi_modal_projector|mm_projector|audio_tower|"
        r"embed_vision|embed_audio|vision_projection|image_newline|patch_merger)(\..*)?",
        "it is not of the text",
    ),
    Rename(r"^model\.language_model\.", "model."),
    Rename(r"^language_model\.lm_head\.", "lm_head."),
    Rename(r"^language_model\.model\.", "model."),
    Rename(r"^text_model\.", "model."),
)


def is_wrapper(hf_config: Mapping[str, Any]) -> bool:
    """Whether the text model is only a part of the configuration."""
    return _text(hf_config) is not None


def text_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the text alone: of a text model, the configuration itself."""
    text = _text(hf_config)
    if text is None:
        return hf_config
    if text is hf_config:
        return _flat(hf_config)
    merged = dict(text)
    for key in (*SHARED, "ignored_tensors"):
        if hf_config.get(key) is not None:
            merged[key] = hf_config[key]
    return merged


def _text(hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for name in TEXT:
        text = hf_config.get(name)
        if isinstance(text, Mapping) and text.get("model_type"):
            return text
    return hf_config if _is_flat(hf_config) else None


def _is_flat(hf_config: Mapping[str, Any]) -> bool:
    """Whether the keys of the text stand beside those of the whole, as in Qwen2-VL's older configurations."""
    return isinstance(hf_config.get("vision_config"), Mapping) and "hidden_size" in hf_config


def _flat(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text's keys of a flat configuration, whose model type has no name of its own."""
    own = {key: value for key, value in hf_config.items() if key != "vision_config"}
    return {**own, "model_type": f"{hf_config.get('model_type')}_text"}
