"""The readers that are tried: which good files each begins with, and what it does with a damaged one.

Owns: this table. Never does: damage a file. Called by: the workers, the replay of kept files.

A target reads a folder. It may return or raise CoreError; everything else is a finding.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.fuzz import (
    adapters,
    batches,
    client_end,
    engine_end,
    fabrics,
    heads,
    journals,
    kept_pages,
    known,
    lease_frames,
    media,
    page_frames,
    page_places,
    pages,
    plugin_answers,
    prompt_servers,
    receipts,
    shared_counts,
    steps,
    store_answers,
    tool_servers,
)
from tests.loaders.gguf_files import finish

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Target:
    """One reader.

    make: writes a good folder.
    damaged: the names of the files that are damaged, one at a time.
    read: reads the folder with everything that a start reads before weights are packed, and the weights.
    """

    make: Callable[[Path], None]
    damaged: tuple[str, ...]
    read: Callable[[Path], object]


def _loaded(loader: str, ref: Path) -> None:
    """Resolve and read every tensor, as the engine's loading does."""
    from core.plugin.hookspecs import LoadContext
    from core.plugin.registry import PluginRegistry
    from core.plugin.table import load_plugin

    manifest = PluginRegistry().get("loader", loader)
    reader = load_plugin(manifest, LoadContext(arguments={}))
    found = reader.resolve(str(ref))
    for _, tensor in reader.iter(found, list(found.tensors)):
        tensor.flatten()[:1].tolist()


def _config(folder: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 64,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
    }
    (folder / "config.json").write_text(json.dumps(config))


def _state() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).standard_normal
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (64, 32),
        f"{layer}self_attn.q_proj.weight": (32, 32),
        f"{layer}self_attn.k_proj.weight": (16, 32),
        f"{layer}self_attn.v_proj.weight": (16, 32),
        f"{layer}self_attn.o_proj.weight": (32, 32),
        f"{layer}mlp.gate_proj.weight": (48, 32),
        f"{layer}mlp.up_proj.weight": (48, 32),
        f"{layer}mlp.down_proj.weight": (32, 48),
        f"{layer}input_layernorm.weight": (32,),
        f"{layer}post_attention_layernorm.weight": (32,),
        "model.norm.weight": (32,),
        "lm_head.weight": (64, 32),
    }
    return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}


def _safetensors(folder: Path) -> None:
    from safetensors.numpy import save_file

    _config(folder)
    save_file(_state(), folder / "model.safetensors")


def _sharded(folder: Path) -> None:
    from safetensors.numpy import save_file

    _config(folder)
    names = sorted(_state())
    places = {}
    for number, part in enumerate((names[:6], names[6:]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: _state()[name] for name in part}, folder / file)
        places.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _gguf(folder: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(str(folder / "model.gguf"), "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([chr(65 + index) for index in range(64)])
    writer.add_token_types([1] * 64)
    writer.add_token_merges(["A B"])
    draw = np.random.default_rng(0).standard_normal
    sizes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    sizes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
    for name, shape in sizes.items():
        kind = gguf.GGMLQuantizationType.Q8_0 if name.startswith("ffn") else gguf.GGMLQuantizationType.F32
        values = gguf.quants.quantize(draw(shape).astype(np.float32), kind)
        writer.add_tensor(f"blk.0.{name}.weight", values, raw_dtype=kind)
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(32, dtype=np.float32))
    writer.add_tensor("token_embd.weight", draw((64, 32)).astype(np.float32))
    finish(writer)


def _explained(folder: Path) -> None:
    """Everything that the command line does before it starts an engine."""
    from core_config.resolve import resolve

    resolve({"model": str(folder), "skip_tokenizer_init": True}, context="explain")


def _explained_with_inputs(folder: Path) -> None:
    """The same, where inputs are rounded as the checkpoint declares."""
    from core_config.resolve import resolve

    arguments = {"model": str(folder), "skip_tokenizer_init": True, "quantization_config": {"activation": "declared"}}
    resolve(arguments, context="explain")


def _torch_file(folder: Path) -> None:
    import torch

    _config(folder)
    state = {name: torch.from_numpy(values) for name, values in _state().items()}
    torch.save(state, folder / "pytorch_model.bin")


def _mistral(folder: Path) -> None:
    from safetensors.numpy import save_file

    params = {
        "dim": 32,
        "n_layers": 1,
        "head_dim": 16,
        "hidden_dim": 48,
        "n_heads": 2,
        "n_kv_heads": 1,
        "norm_eps": 1e-5,
        "vocab_size": 64,
        "max_seq_len": 128,
    }
    (folder / "params.json").write_text(json.dumps(params))
    own = {
        "model.embed_tokens": "tok_embeddings",
        "model.norm": "norm",
        "lm_head": "output",
        "model.layers.0.self_attn.q_proj": "layers.0.attention.wq",
        "model.layers.0.self_attn.k_proj": "layers.0.attention.wk",
        "model.layers.0.self_attn.v_proj": "layers.0.attention.wv",
        "model.layers.0.self_attn.o_proj": "layers.0.attention.wo",
        "model.layers.0.mlp.gate_proj": "layers.0.feed_forward.w1",
        "model.layers.0.mlp.down_proj": "layers.0.feed_forward.w2",
        "model.layers.0.mlp.up_proj": "layers.0.feed_forward.w3",
        "model.layers.0.input_layernorm": "layers.0.attention_norm",
        "model.layers.0.post_attention_layernorm": "layers.0.ffn_norm",
    }
    state = {}
    for name, values in _state().items():
        state[f"{own[name.removesuffix('.weight')]}.weight"] = values
    save_file(state, folder / "consolidated.safetensors")


def _copied(*place: str) -> Callable[[Path], None]:
    """Copies kept files."""

    def copy(folder: Path) -> None:
        shutil.copytree(ROOT.joinpath("tests", "checkpoints", *place), folder, dirs_exist_ok=True)

    return copy


def _packed(folder: Path) -> None:
    source = folder.with_name("source")
    source.mkdir()
    _safetensors(source)
    command = [sys.executable, "-m", "core", "convert", str(source), str(folder / "out"), "--skip-tokenizer-init"]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    for file in (folder / "out").iterdir():
        file.rename(folder / file.name)
    (folder / "out").rmdir()


def _tokenized(folder: Path) -> None:
    """A tokenizer that is read also has to take a text."""
    from core_tokens.directory import read_tokenizer

    tokenizer = read_tokenizer(folder).backend
    tokenizer.decode(tokenizer.encode("The quick brown fox, 1234; \U0001f98a ü").ids)


def _tokenizer(name: str, file: str) -> Target:
    return Target(_copied("tokenizers", name), (file,), _tokenized)


TARGETS = {
    "safetensors": Target(_safetensors, ("model.safetensors",), lambda folder: _loaded("safetensors", folder)),
    "index": Target(_sharded, ("model.safetensors.index.json",), lambda folder: _loaded("safetensors", folder)),
    "gguf": Target(_gguf, ("model.gguf",), lambda folder: _loaded("gguf", folder / "model.gguf")),
    "pt": Target(_torch_file, ("pytorch_model.bin",), lambda folder: _loaded("pt", folder)),
    "mistral": Target(_mistral, ("params.json",), lambda folder: _loaded("mistral", folder)),
    "packed": Target(_packed, ("prepared.json",), lambda folder: _loaded("packed", folder)),
    "config": Target(_safetensors, ("config.json",), _explained),
    "declaration": Target(_copied("gptq", "order"), ("config.json",), _explained),
    "declared_inputs": Target(_copied("compressed-tensors", "inputs"), ("config.json",), _explained_with_inputs),
    "transforms": Target(_copied("compressed-tensors", "transforms"), ("config.json",), _explained),
    "sentencepiece": _tokenizer("sentencepiece_bpe", "tokenizer.model"),
    "unigram": _tokenizer("sentencepiece_unigram", "spiece.model"),
    "tiktoken": _tokenizer("llama3", "tokenizer.model"),
    "tekken": _tokenizer("tekken", "tekken.json"),
    "adapter": Target(
        adapters.make_safetensors, ("adapter_config.json", "adapter_model.safetensors"), adapters.reader(_safetensors)
    ),
    "recurrent_adapter": Target(
        adapters.make_recurrent,
        ("adapter_config.json", "adapter_model.safetensors"),
        adapters.reader(adapters.make_recurrent_base),
    ),
    "pickled_adapter": Target(adapters.make_pickled, ("adapter_model.bin",), adapters.reader(_safetensors)),
    "gguf_adapter": Target(adapters.make_gguf, ("adapter.gguf",), adapters.reader(_safetensors, "adapter.gguf")),
    "sent_adapter": Target(adapters.make_sent, (adapters.SENT,), adapters.sent_reader(_safetensors)),
    "plans": Target(steps.make_plans, ("1-plan", "2-plan"), steps.read_plans),
    "results": Target(steps.make_results, ("1-result", "2-result"), steps.read_results),
    "to_engine": Target(engine_end.make_messages, engine_end.NAMES, engine_end.read_messages),
    "to_client": Target(client_end.make_messages, client_end.NAMES, client_end.read_messages),
    "pages": Target(pages.make_pages, pages.NAMES, pages.read_pages),
    "page_places": Target(page_places.make_places, page_places.NAMES, page_places.read_places),
    "page_frames": Target(page_frames.make_frames, page_frames.NAMES, page_frames.read_frames),
    "lease_frames": Target(lease_frames.make_frames, lease_frames.NAMES, lease_frames.read_frames),
    "fabrics": Target(fabrics.make_frames, fabrics.NAMES, fabrics.read_frames),
    "store_answers": Target(store_answers.make_answers, store_answers.NAMES, store_answers.read_answers),
    "prompt_servers": Target(prompt_servers.make_answers, prompt_servers.NAMES, prompt_servers.read_answers),
    "tool_servers": Target(tool_servers.make_servers, tool_servers.NAMES, tool_servers.read_servers),
    "io_processors": Target(plugin_answers.make_io, plugin_answers.OF_IO, plugin_answers.read_io),
    "tokenizer_plugins": Target(
        plugin_answers.make_tokenizer, plugin_answers.OF_TOKENIZERS, plugin_answers.read_tokenizer
    ),
    "kept_pages": Target(kept_pages.make_kept, kept_pages.NAMES, kept_pages.read_kept),
    "receipts": Target(receipts.make_receipts, (receipts.RECEIPT, receipts.RECORDS), receipts.read_damaged),
    "journals": Target(journals.make_journals, journals.NAMES, journals.read_journals),
    "starts": Target(known.make_starts, known.STARTS, known.read_starts),
    "configurations": Target(known.make_configurations, known.CONFIGURATIONS, known.read_configurations),
    "loads": Target(known.make_loads, known.LOADS, known.read_loads),
    "shared_counts": Target(shared_counts.make_counts, shared_counts.NAMES, shared_counts.read_counts),
    "batches": Target(batches.make_files, batches.NAMES, batches.read_files),
    "pictures": Target(media.make_pictures, media.PICTURES, media.read_pictures),
    "sounds": Target(media.make_sounds, media.SOUNDS, media.read_sounds),
    "videos": Target(media.make_videos, media.VIDEOS, media.read_videos),
    "media_rows": Target(media.make_rows, (*media.ROWS, media.GRID), media.read_rows),
    "heads": Target(heads.make_requests, heads.NAMES, heads.read_requests),
}
