"""Adapters in GGUF files have the answers of the peft adapter that they were made from."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from core import SamplingParams
from core.api.errors import UserError
from core_adapters.gguf.format import GGUFFormat
from tests.adapters.engines import engine, prompt_logits
from tests.adapters.families import AdaptedHarness, save_base, saved_with_logits
from tests.adapters.made import Oracle, converted, save_adapter

PROMPT = [1, 40, 77, 90, 12, 201, 33]
SCORED = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=260)


def test_logits_are_those_of_peft(tiny_llama: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tiny_llama, tmp_path / "peft")
    file = converted(adapter, tmp_path / "adapter.gguf", 16.0)
    with engine(tiny_llama, {}) as made:
        made.load(file)
        (scored,) = made.run([(PROMPT, file)], SCORED)
    wanted = Oracle(tiny_llama, adapter).logits(PROMPT).numpy()[:-1]
    assert np.abs(prompt_logits(scored) - wanted).max() <= 1e-4 * np.abs(wanted).max()


NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "bloom": (
        "bloom",
        {
            "transformer.word_embeddings": "token_embd", "transformer.h.0.self_attention.query_key_value": "blk.0.attn_qkv",
            "transformer.h.1.mlp.dense_4h_to_h": "blk.1.ffn_down",
        },
    ),
    "gpt_neox": (
        "gptneox",
        {
            "gpt_neox.embed_in": "token_embd", "gpt_neox.layers.0.attention.query_key_value": "blk.0.attn_qkv",
            "gpt_neox.layers.1.mlp.dense_4h_to_h": "blk.1.ffn_down",
        },
    ),
    "gemma3_text": ("gemma3", {"model.embed_tokens": "token_embd", "model.layers.0.self_attn.o_proj": "blk.0.attn_output"}),
}  # fmt: skip
SAVED = {
    "bloom": {"transformer.ln_f": "output_norm"},
    "gpt_neox": {},
    "gemma3_text": {"model.norm": "output_norm", "model.layers.0.self_attn.q_norm": "blk.0.attn_q_norm"},
}
HEADS = {"bloom": 4, "gpt_neox": 3}
PREFIX = "base_model.model."


def by_part(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of all queries, keys and values, as the converter writes them, from those of each head."""
    return rows.view(heads, 3, -1, rows.shape[1]).transpose(0, 1).reshape(rows.shape)


def written_as_gguf(model_type: str, adapter: Path, target: Path, packed: bool) -> Path:
    """What llama.cpp's converter makes of an adapter with an embedding, with a matrix of queries, keys and values, and norms.

    packed: as with its option `--outtype q8_0`, for rows of whole blocks.
    """
    architecture, names = NAMES[model_type]
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for name, tensor in load_file(adapter / "adapter_model.safetensors").items():
        module, _, ending = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        if ending not in ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"):
            module, _, field = name.removeprefix(PREFIX).rpartition(".")
            if not module.endswith("base_layer"):  # peft saves the embedding as well
                writer.add_tensor(
                    f"{SAVED[model_type][module]}.{field}", (tensor + (model_type == "gemma3_text")).numpy()
                )
            continue
        if ending == "lora_embedding_A":
            tensor = tensor.T.contiguous()
        if ending == "lora_B" and names[module].endswith("attn_qkv"):
            tensor = by_part(tensor, HEADS[model_type])
        name = f"{names[module]}.weight.lora_{ending[-1].lower()}"
        if packed and tensor.shape[-1] % 32 == 0:
            raw = gguf.quants.quantize(tensor.numpy(), gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "Q8_0"])
@pytest.mark.parametrize("model_type", NAMES)
def test_embeddings_fused_matrices_and_norms(model_type: str, packed: bool, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", model_type)
    saved = [name.rpartition(".")[2] for name in SAVED[model_type]]
    targets = r".*({})".format("|".join(re.escape(name) for name in NAMES[model_type][1]))
    options: dict[str, Any] = {"modules_to_save": [r"ln_f"] if model_type == "bloom" else saved} if saved else {}
    if model_type == "gemma3_text":  # peft saves these norms of every layer by their last name
        options["modules_to_save"] = list(SAVED[model_type])
    wanted = saved_with_logits(base, tmp_path / "adapter", model_type, PROMPT, target_modules=targets, **options)
    file = written_as_gguf(model_type, tmp_path / "adapter", tmp_path / "adapter.gguf", packed)
    found = AdaptedHarness(base, file).logits(PROMPT)
    # Rounding to 8 bits is the file's own.
    assert float((found - wanted).abs().max()) <= (2e-2 if packed else 1e-4) * float(wanted.abs().max())


def test_what_is_no_adapter_is_a_sentence(tiny_llama: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tiny_llama, tmp_path / "peft", target_modules=["o_proj"])
    other = converted(adapter, tmp_path / "other.gguf", 16.0, kind="control_vector")
    cut = converted(adapter, tmp_path / "cut.gguf", 16.0)
    cut.write_bytes(cut.read_bytes()[:-64])
    form = GGUFFormat()
    with pytest.raises(UserError, match=r"adapter\.type is 'control_vector'"):
        form.read(str(other))
    with pytest.raises(UserError, match="damaged or incomplete"):
        form.read(str(cut))
    assert not form.claims(str(tiny_llama)) and not form.claims(str(tmp_path / "peft"))
    with engine(tiny_llama, {}) as made, pytest.raises(UserError, match="no adapter of a known format"):
        made.load(tiny_llama)
