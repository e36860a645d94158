"""Tiny models that see and hear in one prompt, with towers of transformers alone: Gemma 4, the thinker of Qwen2.5-Omni."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ImageProcessor,
    Gemma4Processor,
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerConfig,
    Qwen2VLImageProcessor,
    WhisperFeatureExtractor,
)

from core_media.processing.image_processor import NoVideo, without_video
from tests.media.checkpoints import SECTIONS, TEXT, template, tokenizer_with
from tests.media.heard import save as save_model

GEMMA = {
    "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>",
    "boa_token": "<|audio>", "eoa_token": "<audio|>",
}  # fmt: skip
BOUNDS = ("input_min", "input_max", "output_min", "output_max")
"""Ends of the names of bounds between which Gemma 4's towers keep the numbers of a layer, infinite in a new model."""
QWEN = {
    "image_token": "<|IMAGE|>", "audio_token": "<|AUDIO|>", "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>", "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}  # fmt: skip


def shown_as(picture: str, sound: str, video: str = "") -> str:
    """A chat template that reads parts of all modalities."""
    more = "{% elif p.type == 'audio' %}" + sound + "{% elif p.type == 'video' %}" + video + "{% else %}{{ p.text }}"
    return template(picture).replace("{% else %}{{ p.text }}", more)


def save_gemma4(directory: Path, *, audio: bool = True, **text: Any) -> Path:
    """Gemma 4 of the small kind: embeddings for each layer, a layer that borrows its keys, pictures of up to 70 rows.

    audio: whether the checkpoint has a tower of sounds. text: values of the text model.
    """
    without_video()
    made, tokenizer = tokenizer_with(*GEMMA.values(), "<|video|>", **GEMMA)
    count = made.get_vocab_size()
    config = Gemma4Config(
        text_config={
            **TEXT, "head_dim": 16, "global_head_dim": 24, "vocab_size": count, "vocab_size_per_layer_input": count,
            "hidden_size_per_layer_input": 12, "sliding_window": 8, "num_kv_shared_layers": 1,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"], **text,
        },
        vision_config={
            "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "position_embedding_size": 700,
            "use_clipped_linears": True, "standardize": True,
        },
        audio_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "subsampling_conv_channels": [8, 4],
            "output_proj_dims": 24,
        } if audio else None,
        image_token_id=made.token_to_id("<|image|>"), audio_token_id=made.token_to_id("<|audio|>"),
        video_token_id=made.token_to_id("<|video|>"), boi_token_id=made.token_to_id("<|image>"),
        eoi_token_id=made.token_to_id("<image|>"), boa_token_id=made.token_to_id("<|audio>"),
        eoa_token_index=made.token_to_id("<audio|>"),
    )  # fmt: skip
    save_model(directory, config)
    _make_telling(
        directory / "model.safetensors", [made.token_to_id(f"<|{name}|>") for name in ("image", "video", "audio")]
    )
    processor = Gemma4Processor(
        Gemma4AudioFeatureExtractor(feature_size=8), Gemma4ImageProcessor(patch_size=4, max_soft_tokens=70), tokenizer,
        NoVideo(), chat_template=shown_as("<|image|>", "<|audio|>", VIDEO["gemma4"]),
    )  # fmt: skip
    return written(directory, processor)


def save_large_gemma4(directory: Path) -> Path:
    """Gemma 4 of the large kind: rows of a picture see each other in layers with windows, and it hears nothing.

    Its windows are shorter than a picture, and its values are keys.
    """
    return save_gemma4(
        directory, audio=False, use_bidirectional_attention="vision", hidden_size_per_layer_input=0,
        num_kv_shared_layers=0, attention_k_eq_v=True, sliding_window=24,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
    )  # fmt: skip


def _make_telling(file: Path, placeholders: list[int]) -> None:
    """Change a new Gemma 4 so that answers depend on where the patches of a picture lie, on all numbers of its towers, and on
    what stands for a placeholder among the embeddings for each layer; and so that no placeholder is generated, which
    transformers embeds as padding.
    """
    tensors = load_file(file)
    draw = torch.Generator().manual_seed(1)
    for name, tensor in tensors.items():
        if name.endswith("position_embedding_table"):
            tensor.normal_(0.0, 0.5, generator=draw)
        elif name.endswith("patch_embedder.input_proj.weight"):
            tensor.mul_(10.0)
        elif name.endswith("embed_tokens_per_layer.weight"):
            tensor[0].normal_(0.0, 1.0, generator=draw)  # of padding, which is zero in a new model
        elif name.endswith("language_model.embed_tokens.weight"):
            tensor[placeholders] = 0.0
        elif "language_model" in name and name.endswith(("q_norm.weight", "k_norm.weight")):
            tensor.fill_(0.4)  # larger ones choose single keys, and rounding decides which
        elif name.endswith(BOUNDS):
            tensor.fill_(1.5 if name.endswith("_max") else -1.5)
        elif name.endswith(("std_bias", "std_scale")):
            tensor.uniform_(0.5, 1.5, generator=draw)
    save_file(tensors, file, {"format": "pt"})


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
        chat_template=shown_as(SEEN["qwen2_5_omni_thinker"], HEARD["qwen2_5_omni_thinker"], VIDEO["qwen2_5_omni_thinker"]),
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


SAVE_OMNI = {"gemma4": save_gemma4, "qwen2_5_omni_thinker": save_thinker}
SEEN = {"gemma4": "<|image|>", "qwen2_5_omni_thinker": "<|vision_bos|><|IMAGE|><|vision_eos|>"}
HEARD = {"gemma4": "<|audio|>", "qwen2_5_omni_thinker": "<|audio_bos|><|AUDIO|><|audio_eos|>"}
VIDEO = {"gemma4": "<|video|>", "qwen2_5_omni_thinker": "<|vision_bos|><|VIDEO|><|vision_eos|>"}
