"""Tiny models that take pictures, made from transformers' own configurations with random weights."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import (
    AutoModelForImageTextToText,
    CLIPImageProcessor,
    Gemma3Config,
    Gemma3ImageProcessor,
    Gemma3Processor,
    Glm4vConfig,
    Glm4vImageProcessor,
    Glm4vProcessor,
    Glm46VConfig,
    Glm46VImageProcessor,
    Glm46VProcessor,
    GotOcr2ImageProcessor,
    Idefics3Config,
    Idefics3ImageProcessor,
    Idefics3Processor,
    InternVLConfig,
    InternVLProcessor,
    LlavaConfig,
    LlavaNextConfig,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaProcessor,
    Mistral3Config,
    PaliGemmaConfig,
    PaliGemmaProcessor,
    PixtralImageProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLProcessor,
    Qwen2VLConfig,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen3_5Config,
    Qwen3_5MoeConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
    Qwen3VLProcessor,
    SiglipImageProcessor,
    SmolVLMConfig,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    VipLlavaConfig,
)
from transformers.utils import is_torchvision_available

from core_media.processing.image_processor import NoVideo, without_video
from tests.tiny_models import byte_tokenizer

TEXT = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "vocab_size": 300, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def template(picture: str) -> str:
    """A chat template that reads parts."""
    return (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{% if p.type == 'image' %}" + picture + "{% else %}{{ p.text }}{% endif %}{% endfor %}"
        "{% endif %}</s>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )


def tokenizer_with(*tokens: str, **named: str) -> tuple[Tokenizer, Any]:
    """A tokenizer of bytes with more special tokens, and its form in transformers."""
    made = byte_tokenizer()
    made.add_special_tokens(list(tokens))
    return made, PreTrainedTokenizerFast(tokenizer_object=made, extra_special_tokens=named, **NAMES)


def save(directory: Path, config: Any, processor: Any, **settings: Any) -> Path:
    """Write a checkpoint of random weights. settings: of a processor whose video part cannot be written here."""
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
            if parameter.dim() > 1 and not parameter.any():  # Gemma 3's projector, through which no picture would pass
                parameter.normal_(std=0.1)
    model.save_pretrained(directory)
    if not settings:
        processor.save_pretrained(directory)
        return directory
    processor.tokenizer.chat_template = processor.chat_template
    processor.tokenizer.save_pretrained(directory)
    processor.image_processor.save_pretrained(directory)
    written = {"processor_class": type(processor).__name__, **settings}
    (directory / "processor_config.json").write_text(json.dumps(written))
    return directory


def save_llava(directory: Path) -> Path:
    """LLaVA: a CLIP tower, four rows a picture."""
    made, tokenizer = tokenizer_with("<image>")
    token = made.token_to_id("<image>")
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "projection_dim": 32, **VISION},
        text_config={"model_type": "llama", **TEXT},
        image_token_id=token,
    )
    images = CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor = LlavaProcessor(
        images, tokenizer, 14, "default", num_additional_image_tokens=1, chat_template=template("<image>")
    )
    return save(directory, config, processor)


PINPOINTS = [[28, 56], [56, 28], [56, 56]]
"""Sizes to which the tiles of a picture add up."""


def save_vipllava(directory: Path) -> Path:
    """ViP-LLaVA: LLaVA with the outputs of several layers of its tower."""
    made, tokenizer = tokenizer_with("<image>")
    config = VipLlavaConfig(
        vision_config={"model_type": "clip_vision_model", "projection_dim": 32, **VISION},
        text_config={"model_type": "llama", **TEXT},
        image_token_index=made.token_to_id("<image>"), vision_feature_layer=[-2, -1, 1],
    )  # fmt: skip
    images = CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor = LlavaProcessor(
        images, tokenizer, 14, "default", num_additional_image_tokens=1, chat_template=template("<image>")
    )
    return save(directory, config, processor)


def save_llava_next(directory: Path) -> Path:
    """LLaVA-NeXT: CLIP's tower, a picture and its tiles without their margins, lines that end with a row of their own."""
    made, tokenizer = tokenizer_with("<image>")
    config = LlavaNextConfig(
        vision_config={"model_type": "clip_vision_model", "projection_dim": 32, **VISION},
        text_config={"model_type": "llama", **TEXT},
        image_token_index=made.token_to_id("<image>"), image_grid_pinpoints=PINPOINTS,
    )  # fmt: skip
    images = LlavaNextImageProcessor(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, image_grid_pinpoints=PINPOINTS
    )
    processor = LlavaNextProcessor(
        images, tokenizer, 14, "default", num_additional_image_tokens=1, chat_template=template("<image>")
    )
    return save(directory, config, processor)


def save_llava_onevision(directory: Path) -> Path:
    """LLaVA-OneVision: SigLIP's tower; a single picture has tiles, shrunk to the area of two, and several have none."""
    without_video()
    made, tokenizer = tokenizer_with("<image>", "<video>")
    config = LlavaOnevisionConfig(
        vision_config={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        text_config={"model_type": "qwen2", **TEXT}, image_grid_pinpoints=PINPOINTS, vision_aspect_ratio="anyres_max_2",
        image_token_index=made.token_to_id("<image>"), video_token_index=made.token_to_id("<video>"),
    )  # fmt: skip
    images = LlavaOnevisionImageProcessor(size={"height": 28, "width": 28}, image_grid_pinpoints=PINPOINTS)
    settings = {"num_image_tokens": 4, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2"}
    processor = LlavaOnevisionProcessor(images, tokenizer, NoVideo(), chat_template=template("<image>"), **settings)
    return save(directory, config, processor, **settings)


def save_paligemma(directory: Path, kind: str = "gemma") -> Path:
    """PaliGemma: all tokens of a prompt with pictures see each other."""
    named = {"image_token": "<image>"}
    made, tokenizer = tokenizer_with(*named.values(), **named)
    text = {"model_type": kind, "head_dim": 16, **TEXT, "vocab_size": 1500}  # its processor adds 1,152 tokens
    if kind == "gemma2":
        text |= {"sliding_window": 20, "layer_types": KINDS, "query_pre_attn_scalar": 16}
    config = PaliGemmaConfig(
        vision_config={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        text_config=text, image_token_index=made.token_to_id("<image>"), projection_dim=64, hidden_size=64,
    )  # fmt: skip
    images = SiglipImageProcessor(size={"height": 28, "width": 28})
    images.image_seq_length = 4
    return save(directory, config, PaliGemmaProcessor(images, tokenizer, template("<image>")))


def save_mistral3(directory: Path) -> Path:
    """Mistral 3: Pixtral's tower, rows of a picture with breaks between its lines."""
    without_video()
    from transformers import PixtralProcessor

    made, tokenizer = tokenizer_with("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    config = Mistral3Config(
        vision_config={"model_type": "pixtral", "head_dim": 16, **VISION, "image_size": 84},
        text_config={"model_type": "mistral", "head_dim": 16, **TEXT},
        image_token_id=made.token_to_id("[IMG]"), spatial_merge_size=2,
    )  # fmt: skip
    images = PixtralImageProcessor(patch_size={"height": 28, "width": 28}, size={"longest_edge": 84})
    processor = PixtralProcessor(
        images, tokenizer, patch_size=14, spatial_merge_size=2, chat_template=template("[IMG]")
    )
    return save(directory, config, processor)


def save_idefics3(directory: Path, kind: str = "idefics3") -> Path:
    """Idefics 3 and SmolVLM: a picture is divided into tiles."""
    tokens = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
    tokens += [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    made, tokenizer = tokenizer_with(*tokens)
    settings, images, processor = IDEFICS[kind]
    names = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = settings(
        vision_config={"image_size": 56, "patch_size": 14, **names}, text_config={"model_type": "llama", **TEXT},
        image_token_id=made.token_to_id("<image>"), scale_factor=2, pad_token_id=0,
    )  # fmt: skip
    reads = images(size={"longest_edge": 112}, max_image_size={"longest_edge": 56})
    given: dict[str, Any] = {"image_seq_len": 4, "chat_template": template("<image>")}
    if kind == "smolvlm":
        without_video()
        given["video_processor"] = NoVideo()
    return save(directory, config, processor(reads, tokenizer, **given), image_seq_len=4)


IDEFICS = {
    "idefics3": (Idefics3Config, Idefics3ImageProcessor, Idefics3Processor),
    "smolvlm": (SmolVLMConfig, SmolVLMImageProcessor, SmolVLMProcessor),
}


def save_internvl(directory: Path) -> Path:
    """InternVL: its own tower, tiles, and a thumbnail."""
    without_video()
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    named["video_token"] = "<video>"
    made, tokenizer = tokenizer_with(*named.values(), **named)
    vision = {**VISION, "image_size": [28, 28], "patch_size": [14, 14]}
    config = InternVLConfig(
        vision_config={"model_type": "internvl_vision", **vision}, text_config={"model_type": "qwen2", **TEXT},
        image_token_id=made.token_to_id("<IMG_CONTEXT>"), downsample_ratio=0.5,
    )  # fmt: skip
    images = GotOcr2ImageProcessor(size={"height": 28, "width": 28}, max_patches=4)
    processor = InternVLProcessor(
        images, tokenizer, NoVideo(), image_seq_length=1,
        chat_template=template("<IMG_CONTEXT>"),
    )  # fmt: skip
    return save(directory, config, processor, image_seq_length=1)


SECTIONS = [2, 3, 3]
"""Pairs of a head of 16 that rotate by time, height and width."""


def save_gemma3(directory: Path) -> Path:
    """Gemma 3: four rows a picture, which see each other; windows that are shorter than a picture."""
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    made, tokenizer = tokenizer_with(*named.values(), **named)
    config = Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", **VISION, "image_size": 56},
        text_config={"model_type": "gemma3_text", "head_dim": 16, **TEXT, "sliding_window": 3, "layer_types": KINDS},
        mm_tokens_per_image=4, boi_token_index=made.token_to_id("<start_of_image>"),
        eoi_token_index=made.token_to_id("<end_of_image>"), image_token_index=made.token_to_id("<image_soft_token>"),
    )  # fmt: skip
    images = Gemma3ImageProcessor(size={"height": 56, "width": 56})
    processor = Gemma3Processor(images, tokenizer, template("<start_of_image>"), image_seq_length=4)
    return save(directory, config, processor)


KINDS = ["sliding_attention", "full_attention", "sliding_attention"]


def save_qwen(directory: Path, kind: str) -> Path:
    """The Qwen-VLs: rotary positions in three directions; the third adds rows behind two blocks."""
    without_video()
    settings, vision = QWEN[kind]
    named = {"vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"}
    named |= {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    made, tokenizer = tokenizer_with(*named.values(), **named)
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": SECTIONS}}
    if kind.startswith("qwen3"):
        text["head_dim"] = 16
        text["rope_parameters"]["mrope_interleaved"] = True
    if kind.startswith("qwen3_5"):
        text |= LINEAR
        text["rope_parameters"] |= {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    if kind == "qwen3_5_moe":
        del text["intermediate_size"]
        text |= {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        }
    if kind == "qwen3_vl_moe":
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
    config = settings(
        vision_config={"depth": 3, "patch_size": 14, "num_heads": 2, "spatial_merge_size": 2, **vision}, text_config=text,
        image_token_id=made.token_to_id("<|image_pad|>"), video_token_id=made.token_to_id("<|video_pad|>"),
        vision_start_token_id=made.token_to_id("<|vision_start|>"), vision_end_token_id=made.token_to_id("<|vision_end|>"),
    )  # fmt: skip
    images = Qwen2VLImageProcessor(patch_size=14, merge_size=2, min_pixels=28 * 28, max_pixels=140 * 140)
    processor = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor}.get(kind, Qwen3VLProcessor)
    shown = template("<|vision_start|><|image_pad|><|vision_end|>").replace(
        "{% else %}{{ p.text }}",
        "{% elif p.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ p.text }}",
    )
    return save(
        directory, config, processor(images, tokenizer, NoVideo(), chat_template=shown), video_processor_type=""
    )


def save_glm4v(directory: Path, kind: str = "glm4v") -> Path:
    """GLM-4.1V and 4.6V: rotary positions in three directions, of neighbouring pairs on a half of each head."""
    without_video()
    names = ["<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"]
    made, tokenizer = tokenizer_with("<|image|>", "<|video|>", *names)
    starts = zip(("image_start", "image_end", "video_start", "video_end"), names, strict=True)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
    settings, reads, processor = GLM[kind]
    config = settings(
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "depth": 2, "num_heads": 2, "image_size": 56, "patch_size": 14,
            "out_hidden_size": 64,
        },
        text_config={**TEXT, "rope_parameters": rope},
        image_token_id=made.token_to_id("<|image|>"), video_token_id=made.token_to_id("<|video|>"),
        **{f"{name}_token_id": made.token_to_id(token) for name, token in starts},
    )  # fmt: skip
    images = reads(size={"shortest_edge": 28 * 28, "longest_edge": 140 * 140})
    shown = template("<|begin_of_image|><|image|><|end_of_image|>")
    whole = processor(images, tokenizer, NoVideo(), chat_template=shown)
    return save(directory, config, whole, video_processor_type="")


GLM: dict[str, Any] = {
    "glm46v": (Glm46VConfig, Glm46VImageProcessor, Glm46VProcessor),
    "glm4v": (Glm4vConfig, Glm4vImageProcessor, Glm4vProcessor),
}


def save_lfm2_vl(directory: Path) -> Path:
    """LFM2-VL: tiles and a thumbnail, and convolutions among the layers of the text. Needs torchvision."""
    from transformers import Lfm2VlConfig, Lfm2VlImageProcessor, Lfm2VlProcessor

    names = ["<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"]
    names += [f"<|img_row_{row}_col_{column}|>" for row in (1, 2) for column in (1, 2)]
    named = {"image_token": "<image>", "image_start_token": names[0], "image_end_token": names[1]}
    named["image_thumbnail_token"] = names[2]
    made, tokenizer = tokenizer_with("<image>", *names, **named)
    text = {**TEXT, "block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention", "conv"]}
    config = Lfm2VlConfig(
        vision_config={
            "model_type": "siglip2_vision_model", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
            "num_attention_heads": 2, "patch_size": 14, "num_patches": 16, "vision_use_head": False,
        },
        text_config={"model_type": "lfm2", **text}, image_token_id=made.token_to_id("<image>"), projector_hidden_size=48,
    )  # fmt: skip
    images = Lfm2VlImageProcessor(
        tile_size=56, encoder_patch_size=14, min_tiles=2, max_tiles=4, min_image_tokens=1, max_image_tokens=10,
    )  # fmt: skip
    return save(directory, config, Lfm2VlProcessor(images, tokenizer, template("<image>")))


QWEN: dict[str, Any] = {
    "qwen2_vl": (Qwen2VLConfig, {"embed_dim": 32, "hidden_size": 64}),
    "qwen2_5_vl": (
        Qwen2_5_VLConfig,
        {"hidden_size": 32, "intermediate_size": 40, "out_hidden_size": 64, "window_size": 56, "fullatt_block_indexes": [1]},
    ),
    "qwen3_vl": (
        Qwen3VLConfig,
        {
            "hidden_size": 32, "intermediate_size": 40, "out_hidden_size": 64, "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 2],
        },
    ),
}  # fmt: skip
QWEN["qwen3_vl_moe"] = (Qwen3VLMoeConfig, QWEN["qwen3_vl"][1])
OF_QWEN3_5 = {name: value for name, value in QWEN["qwen3_vl"][1].items() if name != "deepstack_visual_indexes"}
QWEN["qwen3_5"] = (Qwen3_5Config, OF_QWEN3_5)
QWEN["qwen3_5_moe"] = (Qwen3_5MoeConfig, OF_QWEN3_5)
LINEAR = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
"""Layers with a state among those of Qwen3.5's text."""

SAVE = {
    "gemma3": save_gemma3,
    **{kind: partial(save_glm4v, kind=kind) for kind in GLM},
    "idefics3": save_idefics3,
    "internvl": save_internvl,
    "llava": save_llava,
    "llava_next": save_llava_next,
    "llava_onevision": save_llava_onevision,
    "mistral3": save_mistral3,
    "paligemma": save_paligemma,
    **{kind: partial(save_qwen, kind=kind) for kind in QWEN},
    "vipllava": save_vipllava,
    "smolvlm": lambda directory: save_idefics3(directory, "smolvlm"),
}
if is_torchvision_available():
    SAVE["lfm2_vl"] = save_lfm2_vl


def picture(seed: int = 0, width: int = 50, height: int = 40) -> Image.Image:
    """A picture of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The picture as the bytes of a file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()
