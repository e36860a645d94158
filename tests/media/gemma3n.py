"""A tiny Gemma 3n, which sees and hears in one prompt.

Its tower of pictures is timm's. Without timm the checkpoint holds a stand-in of CLIP's, and its sounds alone are served.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CLIPVisionConfig,
    Gemma3nAudioFeatureExtractor,
    Gemma3nConfig,
    Gemma3nForConditionalGeneration,
    Gemma3nProcessor,
    SiglipImageProcessor,
)
from transformers.utils import is_timm_available

from tests.media.checkpoints import TEXT, template, tokenizer_with

NAMED = {
    "boi_token": "<start_of_image>", "boa_token": "<start_of_audio>", "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>", "eoa_token": "<end_of_audio>", "audio_token": "<audio_soft_token>",
}  # fmt: skip
"""In the order of their ids: the embeddings of the last two pairs are those of the towers."""
PICTURE_ROWS, SOUND_ROWS = 4, 16
STAND_IN = {"num_hidden_layers": 0, "num_attention_heads": 1, "intermediate_size": 1, "image_size": 1, "patch_size": 1}


def save_gemma3n(directory: Path) -> Path:
    """Gemma 3n: timm's smallest ResNet, four rows a picture, sixteen rows a sound."""
    made, tokenizer = tokenizer_with(*NAMED.values(), **NAMED)
    ids = {name: made.token_to_id(token) for name, token in NAMED.items()}
    seen, heard, end = ids["eoi_token"], ids["eoa_token"], made.get_vocab_size()
    config = Gemma3nConfig(
        text_config={
            **TEXT, "head_dim": 16, "vocab_size": end, "vocab_size_per_layer_input": seen, "sliding_window": 8,
            "hidden_size_per_layer_input": 12, "laurel_rank": 6, "activation_sparsity_pattern": [0.5, 0.0, 0.0],
            "num_kv_shared_layers": 1, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        },
        vision_config={"architecture": "test_resnet", "hidden_size": 96, "vocab_size": heard - seen, "vocab_offset": seen},
        audio_config={
            "hidden_size": 32, "conf_num_hidden_layers": 2, "conf_num_attention_heads": 2, "input_feat_size": 16,
            "sscp_conv_channel_size": [8, 4], "vocab_size": end - heard, "vocab_offset": heard,
        },
        vision_soft_tokens_per_image=PICTURE_ROWS, audio_soft_tokens_per_image=SOUND_ROWS,
        **{f"{name}_id": number for name, number in ids.items()},
    )  # fmt: skip
    torch.manual_seed(0)
    written = config.to_dict()
    model = Gemma3nForConditionalGeneration(_buildable(config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
        # Or they were generated; as inputs transformers would embed them by its towers.
        model.model.language_model.embed_tokens.weight[seen:] = 0
    model.save_pretrained(directory)
    (directory / "config.json").write_text(
        json.dumps({**written, "architectures": ["Gemma3nForConditionalGeneration"]})
    )
    processor = Gemma3nProcessor(
        Gemma3nAudioFeatureExtractor(feature_size=16), SiglipImageProcessor(size={"height": 64, "width": 64}), tokenizer,
        chat_template=_template(), audio_seq_length=SOUND_ROWS, image_seq_length=PICTURE_ROWS,
    )  # fmt: skip
    processor.save_pretrained(directory)
    return directory


def loaded_gemma3n(directory: Path) -> Any:
    """Return transformers' model of the checkpoint."""
    config = _buildable(Gemma3nConfig.from_pretrained(directory))
    return Gemma3nForConditionalGeneration.from_pretrained(directory, config=config, dtype=torch.float32).eval()


def _template() -> str:
    heard = "{% elif p.type == 'audio' %}" + NAMED["audio_token"] + "{% else %}{{ p.text }}"
    return template(NAMED["image_token"]).replace("{% else %}{{ p.text }}", heard)


def _buildable(config: Gemma3nConfig) -> Gemma3nConfig:
    """Return a configuration of which transformers builds a model without timm."""
    if is_timm_available():
        return config
    bare = CLIPVisionConfig(**STAND_IN)
    for name in ("hidden_size", "vocab_size", "vocab_offset", "rms_norm_eps"):
        setattr(bare, name, getattr(config.vision_config, name))
    vars(config)["vision_config"] = bare  # it would refuse another class
    return config
