"""LFM2, whose layers are short convolutions and full attention, against transformers, on real checkpoints of random weights."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Lfm2Config

from core import LLM, SamplingParams
from core.api.errors import UserError
from core_config.resolve import resolve
from core_kit.checkpoints import write_tokenizer
from core_runtime.models.families import decoder_spec
from tests.inside import worker_of

SMALL = {
    "vocab_size": 260,
    "hidden_size": 48,
    "intermediate_size": 120,
    "block_multiple_of": 16,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
}
CONFIGS = {
    "plain": SMALL,
    "biased, longer, untied": {**SMALL, "conv_bias": True, "conv_L_cache": 5, "tie_word_embeddings": False},
    "a kernel of two, fixed MLP": {**SMALL, "conv_L_cache": 2, "block_auto_adjust_ff_dim": False},
    "convolutions alone": {**SMALL, "layer_types": ["conv"] * 5, "block_ffn_dim_multiplier": 1.3},
    "older names": {**SMALL, "layer_types": None, "full_attn_idxs": [0, 3]},
}
PROMPTS = [[1, *range(40, 75)], [9], [1, *[90, 91] * 6], [7, 8], [1, 70, 71, 72]]
NUM_TOKENS = 10


def save(directory: Path, changes: dict) -> Path:
    """A checkpoint whose layers all matter."""
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(Lfm2Config(**changes), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * (0.5 if "conv.conv" in name else 0.12))
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request, tmp_path_factory):
    return save(tmp_path_factory.mktemp("lfm2"), CONFIGS[request.param])


@pytest.fixture(scope="module")
def oracle(checkpoint):
    """Greedy tokens of each prompt, and log-probabilities [length, V] of prompt and tokens."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    cached = "full_attention" in model.config.layer_types
    found = []
    with torch.inference_mode():
        for prompt in PROMPTS:
            ids = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=NUM_TOKENS, use_cache=cached)[
                0
            ]
            logits = model(ids[None], use_cache=False).logits[0]
            found.append((ids[len(prompt) :].tolist(), logits.log_softmax(-1)))
    return found


@pytest.mark.parametrize("chunk, block_size", [(1, 1), (3, 16), (7, 1), (256, 16)])
def test_tokens_and_logprobs_equal_transformers(checkpoint, oracle, chunk, block_size):
    """Whole prompts, or chunks of them; several together where the budget allows."""
    settings = {"max_num_batched_tokens": chunk, "max_num_seqs": min(chunk, 4), "block_size": block_size}
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    with LLM(
        str(checkpoint),
        dtype="float32",
        max_model_len=128,
        kv_cache_memory_bytes=4 << 20,
        use_tqdm_on_load=False,
        **settings,
    ) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False)
        assert worker_of(llm).runner.forward.captured(1), "native states are recorded with the rest"
    for prompt, output, (tokens, expected) in zip(PROMPTS, outputs, oracle, strict=True):
        assert list(output.outputs[0].token_ids) == tokens
        told = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
        for position, (entries, following) in enumerate(zip(told, [*prompt[1:], *tokens], strict=True)):
            assert entries[following].logprob == pytest.approx(float(expected[position, following]), abs=2e-4)


def test_quantized_projections_stay_near(tmp_path):
    """The matrices around a state are matrices like any others: 8-bit ones change little, and are smaller."""
    path = save(tmp_path, SMALL)
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    found = {}
    for method in (None, "int8"):
        settings = {"dtype": "float32", "max_model_len": 128, "kv_cache_memory_bytes": 4 << 20, "quantization": method}
        with LLM(str(path), use_tqdm_on_load=False, **settings) as llm:
            (output,) = llm.generate([{"prompt_token_ids": PROMPTS[0]}], asked, use_tqdm=False)
            weights = worker_of(llm).weights_nbytes
        found[method] = [next(iter(entry.values())).logprob for entry in output.prompt_logprobs[1:]], weights
    assert found["int8"][0] != found[None][0]
    assert found["int8"][0] == pytest.approx(found[None][0], abs=0.25)
    assert found["int8"][1] < 0.6 * found[None][1]


def test_the_plan_is_what_the_engine_takes(checkpoint):
    given = {"model": str(checkpoint), "dtype": "float32", "kv_cache_memory_bytes": 1 << 20, "max_model_len": 64}
    done = resolve({**given, "device": "cpu", "use_tqdm_on_load": False}, context="llm", environ={})
    with LLM(str(checkpoint), use_tqdm_on_load=False, **{k: v for k, v in given.items() if k != "model"}) as llm:
        worker = worker_of(llm)
        assert (done.memory.weights, done.memory.kv) == (worker.weights_nbytes, worker.kv_nbytes)
        assert done.memory.workspace == worker.runner.forward.model.workspace.nbytes
        assert done.memory.num_blocks == worker.num_blocks
        assert done.numerics == worker.numerics
    assert done.memory.state > 0


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"layer_types": ["conv"] * 3}, "for each of 5 layers"),
        ({"layer_types": ["mamba"] * 5}, "expected full_attention or conv"),
        ({"conv_L_cache": 1}, "conv_L_cache is 1"),
        ({"conv_L_cache": "x"}, "conv_L_cache is 'x'"),
        ({"intermediate_size": None}, "block_ff_dim is None"),
    ],
)
def test_damaged_configurations_are_refused(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        decoder_spec({"model_type": "lfm2", **SMALL, **changes})
