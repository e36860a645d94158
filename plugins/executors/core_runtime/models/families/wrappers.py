"""The text model inside the configuration of a multimodal model (images, audio or video). Torch-free.

Owns: which keys of the whole model apply to its text model, which keys and tensors do not, and where overrides go.
Never does: know a family. Called by: the table, the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from core_runtime.models.weight_rules import Ignored, Rename, WeightRule

TEXT: Final = ("text_config", "llm_config", "language_config")
"""Keys under which a whole model's configuration has that of its text model."""
FLAT: Final = ("qwen2_vl", "qwen2_5_vl")
"""Model types of whole models whose older configurations have the text's keys next to their own."""
SHARED: Final = (
    "tie_word_embeddings",
    "quantization_config",
    "dtype",
    "torch_dtype",
    "eos_token_id",
    "bos_token_id",
    "pad_token_id",
    "ignored_tensors",
)
"""Keys of the whole model that also apply to its text model; the whole model's value takes precedence."""
FIXED: Final[Mapping[str, Mapping[str, Any]]] = {"paligemma": {"use_bidirectional_attention": False}}
"""Model type of a whole model → values of its text model, whatever its configuration has: PaliGemma's tokens see later ones in
prompts with pictures alone, and each request says which they are.
"""
LENT: Final[Mapping[str, tuple[str, ...]]] = {"gemma4": ("image_token_id", "video_token_id", "audio_token_id")}
"""Model type of a whole model → keys of its own that its text reads as well, if they have a value."""
OTHER: Final = (
    "vision|visual|image|video|audio|speech|mm_|multi_?modal|projector|vit_|boi_|eoi_|boa_|eoa_|spatial_merge|patch_|"
    "ignore_index|downsample_|^scale_factor$|^projection_dim$|^encoder_config$|^has_lora_adapter$|^window_size$|"
    "^position_id_per_seconds$|^seconds_per_chunk$|^user_token_id$"
)
"""Keys of the whole model that do not apply to its text model: a pattern that matches anywhere in a key."""
NOT_OF_THE_TEXT: Final = "it is not of the text"
PROJECTOR: Final = "image_projector"
"""Key of the configuration of a text model that got its tower from a projector file: what only that file says."""

_OTHER_MODULES: Final = (
    r"(?:thinker\.)?(model\.)?(vision_tower|vision_model|visual|vision_embed_tokens|multi_modal_projector|mm_projector|audio_tower|"
    r"embed_vision|embed_audio|vision_projection|image_newline|patch_merger|"
    r"connector|mlp1|encoder|projector)(\..*)?"
)
WRAPPED: Final[tuple[WeightRule, ...]] = (
    Ignored(_OTHER_MODULES, NOT_OF_THE_TEXT),
    Ignored(r"(talker|token2wav)\..*", "it speaks the text"),
    Rename(r"^thinker\.", ""),
    Rename(r"^model\.language_model\.", "model."),
    Rename(r"^language_model\.lm_head\.", "lm_head."),
    Rename(r"^language_model\.model\.", "model."),
    Rename(r"^(model\.)?text_model\.", "model."),
)


def is_wrapper(hf_config: Mapping[str, Any]) -> bool:
    """Whether the text model is only a part of the configuration."""
    return text_key(hf_config) is not None or _is_flat(hf_config)


def other_module(tensor: str) -> str | None:
    """Return the module of a wrapper's tensor that does not belong to its text model, None for a tensor of the text
    model.
    """
    found = re.fullmatch(_OTHER_MODULES, tensor)
    return None if found is None else found[2]


def text_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration of the text model alone; for a text model, the configuration itself."""
    key = text_key(hf_config)
    if key is None:
        return _flat(hf_config) if _is_flat(hf_config) else hf_config
    merged = dict(hf_config[key])
    for name in SHARED:
        if hf_config.get(name) is not None:
            merged[name] = hf_config[name]
    kind = str(hf_config.get("model_type"))
    lent = {name: hf_config[name] for name in LENT.get(kind, ()) if hf_config.get(name) is not None}
    return {**merged, **lent, **FIXED.get(kind, {})}


def outer_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a wrapper's own keys: those that are neither its text's nor shared with it; empty for a text model."""
    key = text_key(hf_config)
    if key is None and _is_flat(hf_config):
        return {"vision_config": hf_config["vision_config"]}
    if key is None:
        return {}
    return {name: value for name, value in hf_config.items() if name != key and name not in SHARED}


def overridden(hf_config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with `overrides` merged in, mappings key by key.

    In a wrapper's configuration an override goes to the text model where the text has the key, and where the whole does
    not.
    """
    key = text_key(hf_config)
    if key is None:
        return _laid_over(hf_config, overrides)
    whole: dict[str, Any] = {}
    text: dict[str, Any] = {}
    for name, value in overrides.items():
        is_own = name in SHARED or name == key or (name in hf_config and name not in hf_config[key])
        place = whole if is_own else text
        place[name] = value
    inner = _laid_over(hf_config[key], text)
    return _laid_over({**hf_config, key: inner}, whole)


def without_key(hf_config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return a configuration without one key, removed from the whole and from its text."""
    name, dot, inner = path.partition(".")
    left = {key: value for key, value in hf_config.items() if key != name}
    value = hf_config.get(name)
    if dot and isinstance(value, Mapping):
        left[name] = without_key(value, inner)
    text = text_key(hf_config)
    if text is not None and name != text:
        left[text] = without_key(hf_config[text], path)
    return left


def text_key(hf_config: Mapping[str, Any]) -> str | None:
    """Return the key with the text model's configuration; None for a text model, and where the text has no
    configuration of its own.
    """
    for name in TEXT:
        text = hf_config.get(name)
        if isinstance(text, Mapping) and text.get("model_type"):
            return name
    return None


def _is_flat(hf_config: Mapping[str, Any]) -> bool:
    """Whether the keys of the text model stand next to those of the whole, as in Qwen2-VL's older configurations."""
    return isinstance(hf_config.get("vision_config"), Mapping) and hf_config.get("model_type") in FLAT


def _flat(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text model's keys of a flat configuration, whose model type has no name of its own."""
    own = {key: value for key, value in hf_config.items() if key != "vision_config"}
    return {**own, "model_type": f"{hf_config.get('model_type')}_text"}


def _laid_over(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(config)
    for key, value in overrides.items():
        before = out.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            out[key] = _laid_over(before, value)
        else:
            out[key] = value
    return out
