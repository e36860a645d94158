"""Whole models on the native kernels: every instruction set, and sizes that no kernel likes, against transformers."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from core import LLM, SamplingParams
from core.api.errors import CoreError
from core.api.reason import Reason
from core_config.resolve import resolve
from core_platforms.cpu.extension import kernels_or_reason
from core_runtime.executor.worker import Worker
from tests.tiny_models import save_checkpoint

NATIVE = kernels_or_reason()
pytestmark = pytest.mark.skipif(isinstance(NATIVE, Reason), reason=f"needs the native kernels: {NATIVE}")
ISAS = () if isinstance(NATIVE, Reason) else NATIVE.isas()


def prompt_logprobs(path, ids, **settings):
    """The logprob of every prompt token after the first, and 8 greedy tokens."""
    llm = LLM(model=str(path), max_model_len=64, max_num_seqs=4, **settings)
    asked = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, prompt_logprobs=1)
    output = llm.generate({"prompt_token_ids": ids}, asked, use_tqdm=False)[0]
    llm.close()
    found = [entries[token].logprob for token, entries in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]
    return torch.tensor(found), output.outputs[0].token_ids


def expected(path, ids):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)[:-1]
        greedy = model.generate(torch.tensor([ids]), max_new_tokens=8, min_new_tokens=8, do_sample=False)[0, len(ids) :]
    return scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0], greedy.tolist()


@pytest.mark.parametrize("isa", ISAS)
def test_a_model_runs_on_every_instruction_set(tiny_llama, isa):
    ids = list(range(5, 45))
    want, tokens = expected(tiny_llama, ids)
    before = NATIVE.isa()
    got, greedy = prompt_logprobs(tiny_llama, ids, dtype="float32", platform_config={"isa": isa})
    assert NATIVE.isa() == before
    torch.testing.assert_close(got, want, atol=1e-3, rtol=0)
    assert greedy == tokens
    rounded, _ = prompt_logprobs(tiny_llama, ids, dtype="bfloat16", platform_config={"isa": isa})
    assert 0 < (rounded - want).abs().max() < 0.3


@pytest.mark.parametrize("isa", [ISAS[0], "generic"] if ISAS else [])
def test_the_numerics_id_names_the_instruction_set(tiny_llama, isa):
    given = {"model": str(tiny_llama), "max_model_len": 64, "platform_config": {"isa": isa}}
    planned = resolve(given, context="llm", environ={})
    worker = Worker(planned.engine)
    assert planned.numerics == worker.numerics and planned.numerics.count(f":{isa}") == 2  # kernels and attention
    worker.close()


def test_an_instruction_set_of_another_machine_is_refused(tiny_llama):
    missing = next(name for name in ("neon", "avx2") if name not in ISAS)
    with pytest.raises(CoreError, match=f"isa '{missing}': these run here: .*generic"):
        LLM(model=str(tiny_llama), platform_config={"isa": missing})


ODD = {
    "hidden_size": 577, "head_dim": 80, "intermediate_size": 1001, "num_attention_heads": 1,
    "num_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 50_257,
}  # fmt: skip


QUICK = ("generic", "avx512_vnni_bf16")


@pytest.mark.parametrize("isa", [pytest.param(isa, marks=[pytest.mark.slow] * (isa not in QUICK)) for isa in ISAS])
def test_odd_sizes_equal_transformers(tmp_path_factory, isa):
    path = tmp_path_factory.getbasetemp() / "odd_sizes"
    if not path.exists():
        save_checkpoint(path, **ODD)
    for ids in ([7], [50_256, 3, 49_999, 12, 31_111]):
        want, tokens = expected(path, ids)
        got, greedy = prompt_logprobs(path, ids, dtype="float32", platform_config={"isa": isa})
        torch.testing.assert_close(got, want, atol=1e-3, rtol=0)
        assert greedy == tokens


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_models_of_experts_generate_what_transformers_does(tmp_path, family):
    path = save_checkpoint(tmp_path / family, family=family)
    ids = list(range(9, 60))
    want, tokens = expected(path, ids)
    for settings in ({}, {"platform_config": {"isa": "generic"}}, {"max_num_batched_tokens": 16}):
        got, greedy = prompt_logprobs(path, ids, dtype="float32", **settings)
        torch.testing.assert_close(got, want, atol=1e-3, rtol=0)
        assert greedy == tokens
    resolution = resolve({"model": str(path), "max_model_len": 64}, context="llm", environ={})
    worker = Worker(resolution.engine)
    assert resolution.memory.weights == worker.weights_nbytes
    assert resolution.memory.workspace == worker.runner.forward.model.workspace.nbytes
    worker.close()
