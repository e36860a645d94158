"""Scales of a checkpoint's KV cache reach the attention layers, and wrong ones are refused by name."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.api.errors import CheckpointError
from core.api.sampling_params import SamplingParams
from core_frontend.llm import LLM

ARGUMENTS = {
    "device": "cpu", "max_model_len": 64, "max_num_seqs": 2, "kv_cache_memory_bytes": 1 << 22, "use_tqdm_on_load": False
}  # fmt: skip


def with_tensors(source, directory, tensors):
    shutil.copytree(source, directory)
    (file,) = directory.glob("*.safetensors")
    save_file({**load_file(file), **tensors}, file, metadata={"format": "pt"})
    return directory


def logprobs(path, dtype):
    llm = LLM(model=str(path), kv_cache_dtype=dtype, **ARGUMENTS)
    try:
        params = SamplingParams(max_tokens=4, temperature=0.0, logprobs=1, ignore_eos=True)
        found = llm.generate([{"prompt_token_ids": list(range(3, 30))}], params)[0].outputs[0]
        return found.token_ids, found.cumulative_logprob
    finally:
        llm.close()


def test_scales_are_used(tiny_llama, tmp_path):
    name = "model.layers.{}.self_attn.{}_scale"
    tiny = {name.format(i, part): torch.tensor(1e-9) for i in range(3) for part in "kv"}
    plain, zeroed = logprobs(tiny_llama, "fp8"), logprobs(with_tensors(tiny_llama, tmp_path / "a", tiny), "fp8")
    # Numbers far beyond the type's largest are cut to it: keys and values are as good as 0.
    assert abs(plain[1] - zeroed[1]) > 1e-4
    ones = {name: torch.ones(1) for name in tiny}
    assert logprobs(with_tensors(tiny_llama, tmp_path / "b", ones), "fp8") == plain
    assert logprobs(tmp_path / "a", "float32") == logprobs(tiny_llama, "float32")


def test_a_scale_that_is_none_is_refused(tiny_llama, tmp_path):
    path = with_tensors(tiny_llama, tmp_path / "c", {"model.layers.1.self_attn.k_scale": torch.tensor(-1.0)})
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.k_scale .*positive"):
        logprobs(path, "fp8")
