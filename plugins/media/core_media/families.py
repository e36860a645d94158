"""The families of models whose pictures, sounds and videos are served.

Owns: one row a family, and what a family's prompts hold in place of an item. Never does: import transformers. Called by: the
configuration.

Every row is served by the processor and the tower of transformers. A family that needs more than rows in place of embeddings,
such as rotary positions in three directions, has no row, so its pictures are refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

FAMILIES: Final[Mapping[str, str]] = MappingProxyType({
    "gemma3": "<start_of_image>",
    "gemma3n": "<image_soft_token>",
    "gemma4": "<|image|>",
    "glm46v": "<|image|>",
    "glm4v": "<|image|>",
    "idefics3": "<image>",
    "internvl": "<IMG_CONTEXT>",
    "lfm2_vl": "<image>",
    "llava": "<image>",
    "llava_next": "<image>",
    "llava_onevision": "<image>",
    "mistral3": "[IMG]",
    "paligemma": "<image>",
    "qwen2_5_omni_thinker": "<|IMAGE|>",
    "qwen2_5_vl": "<|image_pad|>",
    "qwen2_vl": "<|image_pad|>",
    "qwen3_5": "<|image_pad|>",
    "qwen3_5_moe": "<|image_pad|>",
    "qwen3_vl": "<|image_pad|>",
    "qwen3_vl_moe": "<|image_pad|>",
    "smolvlm": "<image>",
    "vipllava": "<image>",
})  # fmt: skip
"""Model type of the whole model → what its chat template writes for a picture; the processor's text replaces it."""

SOUNDS: Final[Mapping[str, str]] = MappingProxyType({
    "gemma3n": "<audio_soft_token>",
    "gemma4": "<|audio|>",
    "granite_speech": "<|audio|>",
    "qwen2_5_omni_thinker": "<|AUDIO|>",
    "qwen2_audio": "<|AUDIO|>",
    "voxtral": "[AUDIO]",
})  # fmt: skip
"""The same for sounds."""

SHOWN: Final[Mapping[str, str]] = MappingProxyType({"voxtral": "[BEGIN_AUDIO][AUDIO]"})
"""What is written for a sound where a chat template takes no parts, if it is more than the placeholder."""

VIDEOS: Final[Mapping[str, str]] = MappingProxyType({
    "gemma4": "<|video|>",
    "qwen2_5_omni_thinker": "<|VIDEO|>",
    **dict.fromkeys(
        ("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"), "<|video_pad|>"
    ),
})  # fmt: skip
"""The same for videos."""

PRUNED: Final = frozenset({"qwen2_5_omni_thinker", "qwen2_5_vl", "qwen2_vl"})
"""Model types whose videos may be pruned: a video's rows follow each other, so their number says all of their places."""

CLOSINGS: Final[Mapping[str, Mapping[str, tuple[str, int]]]] = MappingProxyType({
    "gemma3n": {"image": ("eoi_token_id", 262_144), "audio": ("eoa_token_id", 262_272)},
})  # fmt: skip
"""Model type → modality → configuration key and usual id of a token behind an item whose embedding is the tower's as well."""

TOWERS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType({
    "gemma3n": {"image": "vision_tower", "audio": "audio_tower"},
    "gemma4": {"image": "vision_tower", "audio": "audio_tower"},
    "qwen2_5_omni_thinker": {"audio": "audio_tower"},  # its pictures and videos share the other one
})  # fmt: skip
"""Model type with a tower for each modality → modality → its module, which is read where the modality is served; that of
pictures also where videos are.
"""

MOST_SAMPLES: Final[Mapping[str, int]] = MappingProxyType({"gemma3n": 480_000, "gemma4": 480_000})
"""Model type → samples behind which its processor cuts a sound without a word."""

PIXTRAL: Final = "[IMG]"
"""The same for a LLaVA whose tower is Pixtral's."""

THREE_POSITIONS: Final = frozenset({
    "glm46v", "glm4v", "qwen2_5_omni_thinker", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl",
    "qwen3_vl_moe",
})  # fmt: skip
"""Model types whose rows of pictures rotate by three positions; a text configuration without `mrope_section` has one."""

TWO_SIDED: Final[Mapping[str, str]] = MappingProxyType({"gemma3": "rows", "paligemma": "prompt"})
"""Model type → what of a prompt with pictures sees each other in both directions, see `MediaConfig`."""

BY_TEXT: Final = frozenset({"gemma4"})
"""Model types whose rows see each other where the text's `use_bidirectional_attention` is `vision`: the large ones."""

REWRITTEN: Final[Mapping[str, str]] = MappingProxyType({"paligemma": "\n"})
"""Model type whose processor begins the text of a prompt, with the tokenizer's first token, behind the last picture → what
it puts at the end."""

_PLAIN: Final = (
    "glm46v", "glm4v", "llava", "llava_next", "llava_onevision", "paligemma", "qwen2_5_vl", "qwen2_vl", "qwen3_5",
    "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "vipllava",
)  # fmt: skip
AROUND_ROWS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = MappingProxyType({
    "gemma3": {"image": ("\n\n<start_of_image>", "<end_of_image>\n\n")},
    "gemma3n": {
        "image": ("\n\n<start_of_image>", "<end_of_image>\n\n"), "audio": ("\n\n<start_of_audio>", "<end_of_audio>\n\n"),
    },
    "gemma4": {"image": ("<|image>", "<image|>"), "audio": ("<|audio>", "<audio|>")},
    "internvl": {"image": ("<img>", "</img>")},
    "qwen2_5_omni_thinker": {"image": ("", ""), "audio": ("", "")},
    **{kind: {"image": ("", "")} for kind in _PLAIN},
    **{kind: {"audio": ("", "")} for kind in ("granite_speech", "qwen2_audio", "voxtral")},
})  # fmt: skip
"""Model type → modality → what its processor writes before and behind the rows of an item, where it writes nothing between
them: such rows may be given (`--enable-mm-embeds`)."""

BY_COMPANY: Final = frozenset({"llava_onevision"})
"""Model types whose processor divides a picture into tiles only where a prompt has no other."""

OPTIONAL: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"gemma4": ("image", "video", "audio")})
"""Model type → modalities of which some of its checkpoints have no tower: the large Gemma 4 hear nothing."""

OF_TIMM: Final = frozenset({"gemma3n"})
"""Model types whose tower of pictures transformers takes from timm, which needs torchvision."""

OF_TORCHVISION: Final = frozenset({"lfm2_vl"})
"""Model types for which transformers has no processor without torchvision."""


UNSERVED: Final[Mapping[str, str]] = MappingProxyType({
    "gemma4_unified": "transformers processes its pictures with torchvision alone; serve a Gemma 4 of type 'gemma4', which "
                      "sees and hears",
    "phi4_multimodal": "they need the checkpoint's own adapters of the language model, one for each modality; serve Qwen3-VL "
                       "for pictures, or Gemma 3n for both",
})  # fmt: skip
"""Model type whose media are not served → the reason, and what to do."""
ELSEWHERE: Final = "docs/media.md lists the models that see and hear"


def unserved(model_type: str, modalities: Collection[str]) -> dict[str, str]:
    """Return the towers that no item of the served modalities needs, by their own modality."""
    needed = {*modalities, *(("image",) if "video" in modalities else ())}
    return {name: tower for name, tower in TOWERS.get(model_type, {}).items() if name not in needed}


def unread(model_type: str, modalities: Collection[str], module: str) -> bool:
    """Whether a module of a wrapper's tensor is of a tower that no item of the served modalities needs."""
    return module.partition(".")[0] in unserved(model_type, modalities).values()


def two_sided(model_type: str, text: Mapping[str, Any]) -> str:
    """Return what of a prompt with pictures sees each other, see `MediaConfig`. text: configuration of the text model."""
    if model_type in BY_TEXT and text.get("use_bidirectional_attention") == "vision":
        return "rows"
    return TWO_SIDED.get(model_type, "")


def placeholder_of(hf_config: Mapping[str, Any]) -> str:
    """Return what a chat template writes for a picture; empty for a model whose pictures are not served."""
    kind = str(hf_config.get("model_type"))
    vision = hf_config.get("vision_config")
    if kind == "llava" and isinstance(vision, Mapping) and vision.get("model_type") == "pixtral":
        return PIXTRAL
    return FAMILIES.get(kind, "")
