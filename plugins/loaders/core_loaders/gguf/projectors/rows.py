"""The types of projectors, as rows.

Owns: the rows. Never does: read a tensor. Called by: `attach`. Facts are from the conversion scripts of llama.cpp, and from the
configurations of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from core_loaders.gguf.projectors.row import CONFIG_KEYS, Projector, Settings
from core_loaders.gguf.projectors.tower import TowerSource

Names = Mapping[str, str]
WINDOW: Final = 112
"""Side in pixels of the windows of Qwen2.5-VL, which files do not state."""
QWEN_PIXELS: Final = (56 * 56, 28 * 28 * 16_384)
"""Fewest and most pixels of a picture in the published checkpoints of Qwen2-VL and Qwen2.5-VL."""
SPLITS: Final = 4
"""Tiles of a picture's longest side in the published checkpoints of Idefics 3."""


def encoder(tower: str, layers: str) -> dict[str, str]:
    """Return the modules that the towers of CLIP and SigLIP share."""
    inner = {
        "ln1": "layer_norm1", "ln2": "layer_norm2", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_out": "self_attn.out_proj", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
    }  # fmt: skip
    outer = {
        "v.patch_embd": "embeddings.patch_embedding",
        "v.position_embd": "embeddings.position_embedding",
        "v.post_ln": "post_layernorm",
    }
    found = {name: f"{tower}.{module}" for name, module in outer.items()}
    return found | {f"v.blk.*.{name}": f"{tower}.{layers}.*.{module}" for name, module in inner.items()}


def qwen(mlp: Names) -> Names:
    """Return the modules of the towers of Qwen2-VL. mlp: those of the MLP."""
    inner = {"ln1": "norm1", "ln2": "norm2", "attn_out": "attn.proj", **mlp}
    found = {f"v.blk.*.{name}": f"visual.blocks.*.{module}" for name, module in inner.items()}
    return found | {"v.post_ln": "visual.merger.ln_q", "mm.0": "visual.merger.mlp.0", "mm.2": "visual.merger.mlp.2"}


QWEN_JOINED: Final = {
    "visual.patch_embed.proj.weight": ("v.patch_embd.weight", "v.patch_embd.weight.1"),
    "visual.blocks.*.attn.qkv.weight": ("v.blk.*.attn_q.weight", "v.blk.*.attn_k.weight", "v.blk.*.attn_v.weight"),
    "visual.blocks.*.attn.qkv.bias": ("v.blk.*.attn_q.bias", "v.blk.*.attn_k.bias", "v.blk.*.attn_v.bias"),
}
QWEN_TOKENS: Final = {
    "vision_bos_token": ("<|vision_start|>",),
    "vision_eos_token": ("<|vision_end|>",),
    "image_token": ("<|image_pad|>",),
    "video_token": ("<|video_pad|>",),
}
PIXTRAL_LAYER: Final = {
    "ln1": "attention_norm", "ln2": "ffn_norm", "attn_q": "attention.q_proj", "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj", "attn_out": "attention.o_proj", "ffn_up": "feed_forward.up_proj",
    "ffn_gate": "feed_forward.gate_proj", "ffn_down": "feed_forward.down_proj",
}  # fmt: skip


def _colours(source: TowerSource) -> Settings:
    return {"image_mean": source.colours("image_mean"), "image_std": source.colours("image_std")}


def _side(source: TowerSource) -> int:
    """Return the patches along a side of the picture. Raises CheckpointError when they do not fill it."""
    size, patch = source.count("image_size"), source.count("patch_size")
    if size % patch:
        raise source.fail(f"divides a picture of {size} pixels into patches of {patch}, which do not fill it.")
    return size // patch


def _merged(source: TowerSource, factor: int) -> int:
    """Return the rows of a picture whose patches are merged by `factor` in each direction. Raises CheckpointError."""
    side = _side(source)
    if side % factor:
        raise source.fail(f"merges {side} × {side} patches by {factor} × {factor}, which do not fill them.")
    return int(side // factor) ** 2


def gemma3(source: TowerSource, tower: Settings, whole: Settings) -> None:
    """Set the rows of a picture."""
    whole["mm_tokens_per_image"] = _merged(source, source.count("projector.scale_factor", 4))


def gemma3_processor(source: TowerSource, whole: Settings) -> Settings:
    """Return Gemma 3's processor, without panning and scanning, as its checkpoints have it."""
    size = source.count("image_size")
    images = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": size, "width": size}}
    return {
        "processor_class": "Gemma3Processor",
        "image_processor": {**images, **_colours(source)},
        "image_seq_length": whole["mm_tokens_per_image"],
    }


def idefics3(source: TowerSource, tower: Settings, whole: Settings) -> None:
    """Set how patches are merged."""
    whole["scale_factor"] = source.count("projector.scale_factor", 2)
    whole["pad_token_id"] = source.text.get("pad_token_id") or 0


def idefics3_processor(source: TowerSource, whole: Settings) -> Settings:
    """Return the processor, which divides a picture into tiles."""
    size = source.count("image_size")
    images = {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": source.count("preproc_image_size", SPLITS * size)},
        "max_image_size": {"longest_edge": size},
    }
    return {
        "processor_class": "Idefics3Processor",
        "image_processor": {**images, **_colours(source)},
        "image_seq_len": _merged(source, whole["scale_factor"]),
    }


def qwen2(source: TowerSource, tower: Settings, whole: Settings) -> None:
    """Set the sizes that files of Qwen2-VL do not state: their `feed_forward_length` is the text's width."""
    up = source.tensors.get("v.blk.0.ffn_up.weight")
    width: int = tower["embed_dim"]
    # Files from the first converter have both names of the MLP exchanged, so the larger dimension counts.
    inner = max(up.shape) if up is not None else 4 * width
    if inner % width:
        raise source.fail(f"has an MLP of {inner} numbers in a tower of width {width}; expected a multiple.")
    tower["mlp_ratio"] = inner // width
    tower["hidden_size"] = source.text["hidden_size"]
    tower["spatial_merge_size"] = source.count("spatial_merge_size", 2)
    tower["hidden_act"] = source.activation("quick_gelu")


def qwen2_5(source: TowerSource, tower: Settings, whole: Settings) -> None:
    """Set which layers see a whole picture: each n-th of them."""
    tower["out_hidden_size"] = source.text["hidden_size"]
    tower["spatial_merge_size"] = source.count("spatial_merge_size", 2)
    tower["window_size"] = source.count("window_size", WINDOW)
    tower["hidden_act"] = source.activation("silu")
    every = source.count("n_wa_pattern")
    tower["fullatt_block_indexes"] = list(range(every - 1, tower["depth"], every))


def qwen_processor(source: TowerSource, whole: Settings) -> Settings:
    """Return the processor of both Qwen-VLs, with the published limits of pixels unless the file has some."""
    least, most = QWEN_PIXELS
    images = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": source.count("patch_size"),
        "merge_size": source.count("spatial_merge_size", 2),
        "temporal_patch_size": 2,
        "size": {
            "shortest_edge": source.count("image_min_pixels", least),
            "longest_edge": source.count("image_max_pixels", most),
        },
    }
    kind = "Qwen2_5_VLProcessor" if whole["model_type"] == "qwen2_5_vl" else "Qwen2VLProcessor"
    return {"processor_class": kind, "image_processor": {**images, **_colours(source)}, "video_processor_type": ""}


def pixtral(source: TowerSource, tower: Settings, whole: Settings) -> None:
    """Set the kind of the whole model: patches are merged in Mistral Small 3.1, and not in Pixtral."""
    tower["head_dim"] = tower["hidden_size"] // tower["num_attention_heads"]
    tower["hidden_act"] = source.activation("gelu")
    tower["rope_theta"] = source.metadata.number("clip.rope.freq_base", 1.0, 1e12, 10_000.0)
    whole["multimodal_projector_bias"] = "mm.1.bias" in source.tensors
    whole["vision_feature_layer"] = -1
    if "mm.patch_merger.weight" in source.tensors:
        whole["spatial_merge_size"] = source.count("spatial_merge_size", 2)
        return
    if source.count("spatial_merge_size", 1) != 1:
        raise source.fail("merges patches, but has no tensor 'mm.patch_merger.weight'.")
    whole.update(model_type="llava", architectures=["LlavaForConditionalGeneration"])
    whole["vision_feature_select_strategy"] = "full"


def pixtral_processor(source: TowerSource, whole: Settings) -> Settings:
    """Return Pixtral's processor, which ends each line of patches with a token."""
    patch, merged = source.count("patch_size"), int(whole.get("spatial_merge_size", 1))
    side = patch * merged
    images = {
        "image_processor_type": "PixtralImageProcessor",
        "patch_size": {"height": side, "width": side},
        "size": {"longest_edge": source.count("image_size")},
    }
    return {
        "processor_class": "PixtralProcessor",
        "image_processor": {**images, **_colours(source)},
        "patch_size": patch,
        "spatial_merge_size": merged,
    }


def llava(source: TowerSource, tower: Settings, whole: Settings) -> None:
    """Set which layer's numbers are projected: the last one in the file, whose converter leaves out those behind it."""
    if source.counts("image_grid_pinpoints"):
        raise source.fail(
            "divides pictures into tiles (clip.vision.image_grid_pinpoints), as LLaVA 1.6 does: not served."
        )
    chosen = source.counts("feature_layer")
    if chosen not in ([], [tower["num_hidden_layers"]]):
        raise source.fail(f"projects the layers {chosen}; expected the last of {tower['num_hidden_layers']}.")
    tower["hidden_act"] = source.activation("quick_gelu")
    whole["vision_feature_layer"] = -1
    whole["vision_feature_select_strategy"] = "default" if "v.class_embd" in source.tensors else "full"
    whole["multimodal_projector_bias"] = "mm.0.bias" in source.tensors
    if "v.class_embd" not in source.tensors:
        raise source.fail("has no tensor 'v.class_embd'; expected the tower of CLIP.")


def llava_processor(source: TowerSource, whole: Settings) -> Settings:
    """Return LLaVA's processor, which cuts the middle out of a picture."""
    size = source.count("image_size")
    images = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": size},
        "crop_size": {"height": size, "width": size},
    }
    return {
        "processor_class": "LlavaProcessor",
        "image_processor": {**images, **_colours(source)},
        "patch_size": source.count("patch_size"),
        "vision_feature_select_strategy": whole["vision_feature_select_strategy"],
        "num_additional_image_tokens": 1,
    }


def rows() -> Mapping[str, Projector]:
    """Return the rows by `clip.projector_type`."""
    return MappingProxyType({**_siglip_rows(), **_qwen_rows(), **_llava_rows()})


def _siglip_rows() -> dict[str, Projector]:
    siglip: dict[str, Any] = {"hidden_act": "gelu_pytorch_tanh"}
    return {
        "gemma3": Projector(
            "gemma3",
            "Gemma3ForConditionalGeneration",
            texts=("gemma3_text",),
            tower={"model_type": "siglip_vision_model", "vision_use_head": False, **siglip},
            modules=encoder("vision_tower", "encoder.layers")
            | {"mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm"},
            whole={"mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight"},
            norm_offset=frozenset({"mm.soft_emb_norm.weight"}),
            output=("mm.input_projection.weight", 1),
            # Conversions leave out the embedding of the first token, which no text has; an unused one stands for it.
            tokens={
                "boi_token": ("<start_of_image>",),
                "eoi_token": ("<end_of_image>",),
                "image_token": ("<image_soft_token>", "<unused98>", "<unused5>"),
            },
            row_token="image_token",
            settle=gemma3,
            processor=gemma3_processor,
        ),
        "idefics3": Projector(
            "idefics3",
            "Idefics3ForConditionalGeneration",
            texts=("llama",),
            tower={"model_type": "idefics3_vision", **siglip},
            modules=encoder("model.vision_model", "encoder.layers")
            | {"mm.model.fc": "model.connector.modality_projection.proj"},
            output=("mm.model.fc.weight", 0),
            tokens={"image_token": ("<image>",), "fake_image_token": ("<fake_token_around_image>",)},
            row_token="image_token",
            settle=idefics3,
            processor=idefics3_processor,
        ),
    }


def _qwen_rows() -> dict[str, Projector]:
    keys = {"block_count": "depth", "attention.head_count": "num_heads", "patch_size": "patch_size"}
    gated = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    shared: dict[str, Any] = {
        "texts": ("qwen2_vl_text",),
        "joined": QWEN_JOINED,
        "output": ("mm.2.weight", 0),
        "tokens": QWEN_TOKENS,
        "row_token": "image_token",
        "processor": qwen_processor,
    }
    return {
        "qwen2vl_merger": Projector(
            "qwen2_vl",
            "Qwen2VLForConditionalGeneration",
            text_type="qwen2_vl_text",
            keys={**keys, "embedding_length": "embed_dim"},
            modules=qwen({"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}),
            settle=qwen2,
            **shared,
        ),
        "qwen2.5vl_merger": Projector(
            "qwen2_5_vl",
            "Qwen2_5_VLForConditionalGeneration",
            text_type="qwen2_5_vl_text",
            keys={**keys, "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size"},
            modules=qwen(gated),
            settle=qwen2_5,
            **shared,
        ),
    }


def _llava_rows() -> dict[str, Projector]:
    clip = {
        **encoder("vision_tower", "encoder.layers"),
        "v.pre_ln": "vision_tower.pre_layrnorm",
        "mm.0": "multi_modal_projector.linear_1",
        "mm.2": "multi_modal_projector.linear_2",
    }
    pixtral_names = {
        "v.patch_embd": "vision_tower.patch_conv",
        "v.pre_ln": "vision_tower.ln_pre",
        "mm.1": "multi_modal_projector.linear_1",
        "mm.2": "multi_modal_projector.linear_2",
        "mm.input_norm": "multi_modal_projector.norm",
        "mm.patch_merger": "multi_modal_projector.patch_merger.merging_layer",
    }
    layers = {f"v.blk.*.{name}": f"vision_tower.transformer.layers.*.{each}" for name, each in PIXTRAL_LAYER.items()}
    return {
        "mlp": Projector(
            "llava",
            "LlavaForConditionalGeneration",
            tower={"model_type": "clip_vision_model"},
            modules=clip,
            whole={"v.class_embd": "vision_tower.embeddings.class_embedding"},
            optional=frozenset({"v.post_ln"}),
            absent=("vision_tower.post_layernorm",),
            output=("mm.2.weight", 0),
            tokens={"image_token": ("<image>",)},
            row_token="image_token",
            settle=llava,
            processor=llava_processor,
        ),
        "pixtral": Projector(
            "mistral3",
            "Mistral3ForConditionalGeneration",
            texts=("llama", "mistral"),
            tower={"model_type": "pixtral"},
            keys={name: key for name, key in CONFIG_KEYS.items() if key != "layer_norm_eps"},
            modules={**pixtral_names, **layers},
            optional=frozenset({"mm.input_norm", "mm.patch_merger"}),
            neutral={"v.token_embd.img_break": "prompts have the token, whose embedding the text model has"},
            output=("mm.2.weight", 0),
            paired=True,
            tokens={"image_token": ("[IMG]",), "image_break": ("[IMG_BREAK]",), "image_end": ("[IMG_END]",)},
            row_token="image_token",
            settle=pixtral,
            processor=pixtral_processor,
        ),
    }
