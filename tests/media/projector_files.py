"""Checkpoints of transformers as pairs of GGUF files, written with the `gguf` package and its tables of names.

What the conversion script of llama.cpp does to values is done here: rotary pairs, norms with one added, parts of matrices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, TensorNameMap, get_tensor_name_map
from gguf.quants import quantize
from safetensors.numpy import load_file

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = dict[str, Array]
ARCHITECTURES = {
    "gemma3_text": MODEL_ARCH.GEMMA3,
    "qwen2_vl_text": MODEL_ARCH.QWEN2VL,
    "qwen2_5_vl_text": MODEL_ARCH.QWEN2VL,
}
NAMES = {MODEL_ARCH.GEMMA3: "gemma3", MODEL_ARCH.QWEN2VL: "qwen2vl", MODEL_ARCH.LLAMA: "llama"}
TYPES = {
    "gemma3": "gemma3", "idefics3": "idefics3", "llava": "mlp", "mistral3": "pixtral", "pixtral": "pixtral",
    "qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger", "smolvlm": "idefics3",
}  # fmt: skip
NORMAL, CONTROL, UNUSED = 1, 3, 5
MERGE = ("ÿ", "þ")
"""Two bytes that no test's text has beside each other."""


def write_pair(
    checkpoint: Path,
    target: Path,
    kind: str,
    *,
    packed: bool = False,
    exchanged: bool = False,
    rows: dict[str, int] | None = None,
    **changes: Any,
) -> tuple[Path, Path]:
    """Write the text model and the projector of a checkpoint, and return their paths.

    packed: matrices of the tower in Q8_0 where their rows are long enough. exchanged: both matrices of an MLP have each other's
    name, as the first converter wrote them. rows: tensors of which only so many rows are written. changes: keys of the
    projector, None removes one.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    tensors = load_file(checkpoint / "model.safetensors")
    for name, count in (rows or {}).items():
        tensors[name] = tensors[name][:count]
    target.mkdir(exist_ok=True)
    text, tower = target / "model.gguf", target / "mmproj-model.gguf"
    write_text(text, checkpoint, config["text_config"], tensors)
    swaps = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"} if exchanged else {}
    write_projector(tower, checkpoint, config, tensors, kind, packed=packed, swaps=swaps, changes=changes)
    return text, tower


def write_text(path: Path, checkpoint: Path, config: dict[str, Any], tensors: Tensors) -> None:
    arch = ARCHITECTURES.get(config["model_type"], MODEL_ARCH.LLAMA)
    writer = GGUFWriter(str(path), NAMES[arch])
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    rope = config["rope_parameters"]
    if arch is MODEL_ARCH.GEMMA3:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([each == "sliding_attention" for each in config["layer_types"]])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    write_vocabulary(writer, checkpoint, config["vocab_size"])
    names = get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, array in tensors.items():
        if is_of_tower(name):
            continue
        if name.endswith("lm_head.weight") and config.get("tie_word_embeddings"):
            continue
        inner = "model." + name.replace("language_model.", "").replace("text_model.", "").removeprefix("model.")
        inner = "lm_head.weight" if name.endswith("lm_head.weight") else inner
        if arch is MODEL_ARCH.LLAMA:
            array = paired(inner, array, config["num_attention_heads"], config["num_key_value_heads"])
        if arch is MODEL_ARCH.GEMMA3 and inner.endswith("norm.weight"):
            array = array + 1
        writer.add_tensor(mapped(names, inner), np.ascontiguousarray(array))
    finish(writer)


def write_vocabulary(writer: GGUFWriter, checkpoint: Path, size: int) -> None:
    made = json.loads((checkpoint / "tokenizer.json").read_text())
    known = {**made["model"]["vocab"], **{each["content"]: each["id"] for each in made["added_tokens"]}}
    special = {each["id"] for each in made["added_tokens"]}
    by_id = {index: token for token, index in known.items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    by_id[size - 1] = "".join(MERGE)  # the format has no empty list, and loaders ask for one of merges
    writer.add_token_list([by_id.get(index, f"[PAD{index}]") for index in range(size)])
    writer.add_token_types(
        [CONTROL if index in special else NORMAL if index in by_id else UNUSED for index in range(size)]
    )
    writer.add_token_merges([" ".join(MERGE)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(False)
    writer.add_chat_template((checkpoint / "chat_template.jinja").read_text())


def write_projector(
    path: Path,
    checkpoint: Path,
    config: dict[str, Any],
    tensors: Tensors,
    kind: str,
    *,
    packed: bool,
    swaps: dict[str, str],
    changes: dict[str, Any],
) -> None:
    vision = config["vision_config"]
    values = projector_values(config, processor_of(checkpoint), kind) | changes
    writer = GGUFWriter(str(path), "clip")
    for key, value in values.items():
        add(writer, f"clip.{key}", value)
    depth = vision.get("num_hidden_layers") or vision["depth"]
    names = get_tensor_name_map(MODEL_ARCH.MMPROJ, depth)
    kept = values.get("vision.block_count", depth)
    for name, array in of_tower(tensors, vision, kind):
        new = name if name.startswith(("v.", "mm.")) else mapped(names, name)
        if new.startswith("v.blk.") and int(new.split(".")[2]) >= kept:
            continue
        new = ".".join(swaps.get(part, part) for part in new.split("."))
        if packed and array.ndim == 2 and array.shape[1] % 32 == 0 and "embd" not in new:
            kind_of = GGMLQuantizationType.Q8_0
            writer.add_tensor(new, quantize(np.ascontiguousarray(array), kind_of), raw_dtype=kind_of)
        else:
            writer.add_tensor(new, np.ascontiguousarray(array))
    finish(writer)


def projector_values(config: dict[str, Any], processor: dict[str, Any], kind: str) -> dict[str, Any]:
    vision, images = config["vision_config"], processor["image_processor"]
    width = vision.get("embed_dim") or vision["hidden_size"]
    found: dict[str, Any] = {
        "projector_type": TYPES[kind],
        "has_vision_encoder": True,
        "vision.projection_dim": config["text_config"]["hidden_size"],
        "vision.image_size": vision.get("image_size", 560),
        "vision.patch_size": vision["patch_size"],
        "vision.embedding_length": width,
        "vision.feed_forward_length": vision.get("intermediate_size", vision["hidden_size"]),
        "vision.block_count": vision.get("num_hidden_layers") or vision["depth"],
        "vision.attention.head_count": vision.get("num_attention_heads") or vision["num_heads"],
        "vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", 1e-6),
        "vision.image_mean": images["image_mean"],
        "vision.image_std": images["image_std"],
    }
    if kind == "gemma3":
        side = int(processor["image_seq_length"] ** 0.5)
        found |= {
            "use_gelu": True,
            "vision.projector.scale_factor": vision["image_size"] // vision["patch_size"] // side,
        }
    elif TYPES[kind] == "idefics3":
        found |= {"use_gelu": True, "vision.projector.scale_factor": config["scale_factor"]}
        found["vision.preproc_image_size"] = images["size"]["longest_edge"]
    elif kind.startswith("qwen"):
        found |= {"vision.image_min_pixels": images["size"]["shortest_edge"]}
        found |= {"vision.image_max_pixels": images["size"]["longest_edge"]}
        if kind == "qwen2_5_vl":
            every = vision["fullatt_block_indexes"][0] + 1
            found |= {"use_silu": True, "vision.n_wa_pattern": every, "vision.window_size": vision["window_size"]}
    elif TYPES[kind] == "pixtral":
        found["use_gelu"] = True
        if "spatial_merge_size" in config:
            found["vision.spatial_merge_size"] = config["spatial_merge_size"]
    elif kind == "llava":
        # The converter leaves out the layers behind the one that is projected.
        found |= {"has_llava_projector": True, "use_gelu": False, "vision.block_count": vision["num_hidden_layers"] - 1}
        found["vision.feature_layer"] = [vision["num_hidden_layers"] - 1]
    return found


def of_tower(tensors: Tensors, vision: dict[str, Any], kind: str) -> Iterator[tuple[str, Array]]:
    """The tower's tensors under the names that the table of `gguf` has, or under their new ones."""
    for name, array in tensors.items():
        if not is_of_tower(name) or ".head." in name:
            continue
        if kind == "llava" and "post_layernorm" in name:
            continue
        if kind in ("gemma3", "llava"):
            name = name.replace("vision_tower.", "vision_tower.vision_model.")
            name = name.replace("mm_input_projection_weight", "mm_input_projection.weight")
        if kind == "llava":
            name = name.replace("multi_modal_projector.linear_1", "mm.0").replace(
                "multi_modal_projector.linear_2", "mm.2"
            )
        if "mm_soft_emb_norm" in name:
            array = array + 1
        if TYPES[kind] == "pixtral":
            array = paired(name, array, vision["num_attention_heads"], vision["num_attention_heads"])
        if ".qkv." in name:
            for letter, part in zip("qkv", np.split(array, 3), strict=True):
                yield name.replace("qkv", letter), part
        elif "patch_embed.proj.weight" in name:
            yield "v.patch_embd.weight", array[:, :, 0]
            yield "v.patch_embd.weight.1", array[:, :, 1]
        else:
            yield name, array


def is_of_tower(name: str) -> bool:
    words = ("vision_tower.", "multi_modal_projector.", "visual.", "model.vision_model.", "model.connector.")
    return name.startswith(words)


def processor_of(checkpoint: Path) -> dict[str, Any]:
    """The processor's settings, whichever file they are in."""
    found: dict[str, Any] = json.loads((checkpoint / "processor_config.json").read_text())
    if "image_processor" not in found:
        found["image_processor"] = json.loads((checkpoint / "preprocessor_config.json").read_text())
    return found


def paired(name: str, array: Array, heads: int, kv_heads: int) -> Array:
    """Rows of queries and keys as rotary pairs."""
    if ".q_proj." not in name and ".k_proj." not in name:
        return array
    count = heads if ".q_proj." in name else kv_heads
    rows = array.reshape(count, 2, array.shape[0] // count // 2, *array.shape[1:])
    return rows.swapaxes(1, 2).reshape(array.shape)


def mapped(names: TensorNameMap, name: str) -> str:
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
