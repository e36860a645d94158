"""Towers of modalities that are not served, in models of transformers that build a tower for each.

Owns: what is built in their place, and dropped again. Never does: read a tensor. Called by: the tower.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core_media.config import AUDIO, IMAGE, MediaConfig
from core_media.families import OF_TIMM, unserved

KEPT: Final = ("hidden_size", "vocab_size", "vocab_offset", "rms_norm_eps")
"""Keys of a tower from which the model builds modules besides it."""
LAYERS: Final[Mapping[str, str]] = {
    "gemma3n": "conf_num_hidden_layers", "gemma4": "num_hidden_layers", "qwen2_5_omni_thinker": "encoder_layers",
}  # fmt: skip
"""Model type → key with the number of layers of its tower of sounds."""


def without_towers(settings: Any, media: MediaConfig) -> None:
    """Change transformers' configuration of a model so that no tower is built whose modality is not served.

    The one of pictures may need packages that are not installed (timm), so another one without layers stands for it.
    """
    absent = unserved(media.model_type, media.places)
    if IMAGE in absent:
        if media.model_type in OF_TIMM:
            vars(settings)["vision_config"] = _bare(settings.vision_config)  # it refuses other classes otherwise
        elif settings.vision_config is not None:
            settings.vision_config.num_hidden_layers = 0
    if AUDIO in absent and settings.audio_config is not None:
        setattr(settings.audio_config, LAYERS[media.model_type], 0)


def _bare(vision: Any) -> Any:
    from transformers import CLIPVisionConfig

    bare = CLIPVisionConfig(num_hidden_layers=0, num_attention_heads=1, intermediate_size=1, image_size=1, patch_size=1)
    for name in KEPT:
        setattr(bare, name, getattr(vision, name))
    return bare
