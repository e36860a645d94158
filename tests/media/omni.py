"""A tiny model that sees and hears in one prompt, with towers of transformers alone: the thinker of Qwen2.5-Omni."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import (
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerConfig,
    Qwen2VLImageProcessor,
    WhisperFeatureExtractor,
)

from core_media.processing.image_processor import NoVideo, without_video
from tests.media.checkpoints import SECTIONS, TEXT, template, tokenizer_with
from tests.media.heard import save as save_model

QWEN = {
    "image_token": "<|IMAGE|>", "audio_token": "<|AUDIO|>", "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>", "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}  # fmt: skip


def shown_as(picture: str, sound: str, video: str = "") -> str:
    """A chat template that reads parts of all modalities."""
    more = "{% elif p.type == 'audio' %}" + sound + "{% elif p.type == 'video' %}" + video + "{% else %}{{ p.text }}"
    return template(picture).replace("{% else %}{{ p.text }}", more)


def save_thinker(directory: Path) -> Path:
    """The thinker of Qwen2.5-Omni: rotary positions in three directions, sounds of at most two seconds."""
    without_video()
    made, tokenizer = tokenizer_with(*QWEN.values(), **QWEN)
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": SECTIONS}}
    config = Qwen2_5OmniThinkerConfig(
        text_config={**text, "tie_word_embeddings": False},
        vision_config={
            "depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "patch_size": 14, "out_hidden_size": 64,
            "spatial_merge_size": 2, "window_size": 56, "fullatt_block_indexes": [1],
        },
        audio_config={
            "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 40, "num_mel_bins": 16,
            "max_source_positions": 100, "n_window": 50, "output_dim": 64,
        },
        image_token_index=made.token_to_id("<|IMAGE|>"), audio_token_index=made.token_to_id("<|AUDIO|>"),
        video_token_index=made.token_to_id("<|VIDEO|>"), vision_start_token_id=made.token_to_id("<|vision_bos|>"),
        vision_end_token_id=made.token_to_id("<|vision_eos|>"), audio_start_token_id=made.token_to_id("<|audio_bos|>"),
        audio_end_token_id=made.token_to_id("<|audio_eos|>"),
    )  # fmt: skip
    save_model(directory, config)
    images = Qwen2VLImageProcessor(patch_size=14, merge_size=2, min_pixels=28 * 28, max_pixels=140 * 140)
    processor = Qwen2_5OmniProcessor(
        images, NoVideo(), WhisperFeatureExtractor(feature_size=16, chunk_length=2), tokenizer,
        chat_template=shown_as(SEEN["qwen2_5_omni_thinker"], HEARD["qwen2_5_omni_thinker"], VIDEO),
    )  # fmt: skip
    return written(directory, processor)


def written(directory: Path, processor: Any) -> Path:
    """Write the files of a processor whose video part cannot be written here."""
    processor.tokenizer.chat_template = processor.chat_template
    processor.tokenizer.save_pretrained(directory)
    processor.image_processor.save_pretrained(directory)
    settings = {
        "processor_class": type(processor).__name__,
        "video_processor_type": "",
        "feature_extractor": json.loads(processor.feature_extractor.to_json_string()),
    }
    (directory / "processor_config.json").write_text(json.dumps(settings))
    return directory


def as_published(thinker: Path, directory: Path) -> Path:
    """The same weights as one of the models of a whole Qwen2.5-Omni, with another one that speaks."""
    directory.mkdir()
    for file in thinker.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (directory / file.name).write_bytes(file.read_bytes())
    whole = {
        "model_type": "qwen2_5_omni", "architectures": ["Qwen2_5OmniModel"], "torch_dtype": "float32",
        "thinker_config": json.loads((thinker / "config.json").read_text()), "talker_config": {}, "token2wav_config": {},
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(whole))
    own = load_file(thinker / "model.safetensors")
    tensors = {f"thinker.{name.removeprefix('thinker.')}": tensor for name, tensor in own.items()}
    tensors["talker.thinker_to_talker_proj.weight"] = tensors["thinker.lm_head.weight"][:2].clone()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


SAVE_OMNI = {"qwen2_5_omni_thinker": save_thinker}
SEEN = {"qwen2_5_omni_thinker": "<|vision_bos|><|IMAGE|><|vision_eos|>"}
HEARD = {"qwen2_5_omni_thinker": "<|audio_bos|><|AUDIO|><|audio_eos|>"}
VIDEO = "<|vision_bos|><|VIDEO|><|vision_eos|>"
