"""Adapters in GGUF files have the answers of the peft adapter that they were made from."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from core import SamplingParams
from core.api.errors import UserError
from core_adapters.gguf.format import GGUFFormat
from tests.adapters.engines import engine, prompt_logits
from tests.adapters.made import Oracle, save_adapter

PROMPT = [1, 40, 77, 90, 12, 201, 33]
SCORED = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=260)
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def paired(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of each head as llama.cpp's converter puts them: pair by pair."""
    return rows.view(heads, 2, -1, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def converted(adapter: Path, target: Path, alpha: float, kind: str = "lora") -> Path:
    """What llama.cpp's converter makes of a peft adapter of `tiny_llama`."""
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", alpha)
    heads = {"attn_q": 4, "attn_k": 2}
    for name, tensor in load_file(adapter / "adapter_model.safetensors").items():
        module, _, side = name.removeprefix("base_model.model.model.layers.").removesuffix(".weight").rpartition(".")
        number, _, short = module.partition(".")
        if side == "lora_B" and NAMES[short] in heads:
            tensor = paired(tensor, heads[NAMES[short]])
        writer.add_tensor(f"blk.{number}.{NAMES[short]}.weight.{side.lower()}", tensor.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_logits_are_those_of_peft(tiny_llama: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tiny_llama, tmp_path / "peft")
    file = converted(adapter, tmp_path / "adapter.gguf", 16.0)
    with engine(tiny_llama, {}) as made:
        made.load(file)
        (scored,) = made.run([(PROMPT, file)], SCORED)
    wanted = Oracle(tiny_llama, adapter).logits(PROMPT).numpy()[:-1]
    assert np.abs(prompt_logits(scored) - wanted).max() <= 1e-4 * np.abs(wanted).max()


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
