"""Layers that read the keys and values of earlier ones (Gemma 3n, Gemma 4): what is stored, and the bits of answers, also where
the last layers compute only the rows that sample (`--kv-sharing-fast-prefill`)."""

import numpy as np
import pytest

from core.api.errors import ConfigError
from core.api.sampling_params import SamplingParams
from core.commands.main import main
from core_config.resolve import resolve
from core_frontend.llm import LLM
from core_runtime.executor.tail_rows import narrowed
from core_runtime.executor.worker import Worker
from core_runtime.models.decoder import Decoder
from tests.adapters.engines import bits_of, engine
from tests.adapters.made import save_adapter
from tests.tiny_models import save_checkpoint

ARGUMENTS = {
    "device": "cpu", "max_model_len": 256, "max_num_seqs": 4, "block_size": 16, "kv_cache_memory_bytes": 1 << 21,
    "use_tqdm_on_load": False,
}  # fmt: skip
PROMPTS = [{"prompt_token_ids": [(7 * i + j) % 250 + 3 for j in range(length)]} for i, length in enumerate((90, 33, 5))]
PARAMS = SamplingParams(max_tokens=20, temperature=0.0, logprobs=1, ignore_eos=True)
FAMILIES = ("gemma3n", "gemma4")
TOKENS = 16


@pytest.fixture(scope="module", params=FAMILIES)
def sharing(request, tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp(request.param), family=request.param)


@pytest.fixture(scope="module")
def alone(sharing):
    return answers(sharing)


def answers(path, prompts=PROMPTS, params=PARAMS, *, sleeps=False, **arguments):
    llm = LLM(model=str(path), **{**ARGUMENTS, **arguments})
    try:
        # The second call finds the prefix of the first one.
        outputs = llm.generate(prompts, params)
        if sleeps:
            llm.sleep(level=1)
            llm.wake_up()
        outputs += llm.generate(prompts[:1], params)
        scored = [one.prompt_logprobs and list(one.prompt_logprobs) for one in outputs]
        return [
            (one.outputs[0].token_ids, one.outputs[0].cumulative_logprob, prompt)
            for one, prompt in zip(outputs, scored, strict=True)
        ]
    finally:
        llm.close()


def resolved(path, **arguments):
    given = {"model": str(path), **ARGUMENTS, **arguments}
    return resolve(given, context="llm", environ={})


@pytest.mark.parametrize("backend", ["cpu_paged", "torch_sdpa"])
@pytest.mark.parametrize("dtype", ["float32", "int8_per_token_head"])
def test_layers_that_read_others_take_no_memory(sharing, backend, dtype):
    done = resolved(sharing, attention_backend=backend, kv_cache_dtype=dtype, dtype="float32")
    worker = Worker(done.engine)
    try:
        assert worker.kv_nbytes == done.memory.kv
        assert sorted(layer for group in done.memory.groups for layer in group.layers) == [0, 1]
        # Two heads of 16 numbers in layer 0; 16 or 24 in layer 1, where blocks of both kinds have the larger one's bytes.
        size = 24 if "gemma4" in str(sharing) else 16
        item, scales = (4, 0) if dtype == "float32" else (1, 8)
        block = TOKENS * 2 * (2 * size * item + scales)
        assert done.memory.block == -(-block // 64) * 64
        assert done.memory.kv_per_token == 2 * done.memory.block / TOKENS
    finally:
        worker.close()


def test_explain_counts_the_layers_that_store(tmp_path_factory, capsys):
    path = save_checkpoint(tmp_path_factory.mktemp("explained"), family="gemma4")
    own = save_checkpoint(tmp_path_factory.mktemp("own"), family="gemma4", num_kv_shared_layers=0)
    shared, whole = (resolved(one, dtype="float32").memory for one in (path, own))
    assert shared.kv_per_token < whole.kv_per_token / 2
    assert (shared.readers, whole.readers) == (3, 0)
    assert main(["config", "explain", str(path), "--kv-cache-memory-bytes", "1M", "--max-model-len", "64"]) == 0
    assert "3 more layers read those of earlier ones" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        {"attention_backend": "torch_sdpa", "max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 16, "enable_prefix_caching": False},
        {
            "num_gpu_blocks_override": 26,
            "kv_cache_memory_bytes": None,
            "max_model_len": 128,
            "kv_offloading_size": 0.01,
        },
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"disable_hybrid_kv_cache_manager": True},
        {"max_num_seqs": 1},
        {"enable_sleep_mode": True, "sleeps": True},
        {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3}, "max_num_batched_tokens": 16},
    ],
    ids=("torch", "chunks", "preempted", "drafts", "one group", "alone", "asleep", "drafts of itself"),
)
@pytest.mark.parametrize("fast", [False, True], ids=("whole", "fast"))
def test_bits_are_those_of_the_plain_engine(sharing, alone, arguments, fast):
    if arguments.get("speculative_config", {}).get("method") == "draft_model":
        arguments = {**arguments, "speculative_config": {**arguments["speculative_config"], "model": str(sharing)}}
    expected = answers(sharing, attention_backend="torch_sdpa") if "attention_backend" in arguments else alone
    assert answers(sharing, **arguments, kv_sharing_fast_prefill=fast) == expected


def test_skipped_rows_change_no_bit_of_prompts_that_are_scored(sharing):
    params = SamplingParams(max_tokens=4, temperature=0.0, prompt_logprobs=1, logprobs=1)
    prompts = PROMPTS[:2]
    assert answers(sharing, prompts, params, kv_sharing_fast_prefill=True) == answers(sharing, prompts, params)


def test_the_last_layers_compute_only_rows_that_sample(sharing, monkeypatch):
    seen = []
    run = Decoder._block

    def counted(self, index, spec, block, halves, views, positions, steps):
        seen.append((index, len(positions)))
        run(self, index, spec, block, halves, views, positions, steps)

    monkeypatch.setattr(Decoder, "_block", counted)
    one = SamplingParams(max_tokens=1, temperature=0.0)
    fast = {"kv_sharing_fast_prefill": True, "max_num_batched_tokens": 64, "enforce_eager": True}
    llm = LLM(model=str(sharing), **{**ARGUMENTS, **fast})
    try:
        seen.clear()  # the warm-up
        llm.generate(PROMPTS[:1], one)
    finally:
        llm.close()
    rows = {index: sum(count for place, count in seen if place == index) for index in range(5)}
    assert rows == {0: 90, 1: 90, 2: 1, 3: 1, 4: 1}


def test_adapters_see_the_rows_that_are_left(sharing, tmp_path):
    """Rows of two adapters and of none, of which a step keeps the last ones."""
    targets = ["q_proj", "o_proj", "up_proj", "down_proj"]
    adapters = [save_adapter(sharing, tmp_path / str(seed), seed, target_modules=targets) for seed in (1, 2)]
    found = []
    for fast in (False, True):
        with engine(sharing, {"kv_sharing_fast_prefill": fast, "max_num_batched_tokens": 48}) as made:
            made.load(*adapters)
            wanted = [(prompt["prompt_token_ids"], one) for prompt in PROMPTS for one in (*adapters, None)]
            found.append([bits_of(one) for one in made.run(wanted, PARAMS)])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1] != found[0][2], "adapters have an effect"


@pytest.mark.parametrize("dtype", ["int8_per_token_head"])
def test_a_layer_that_stores_nothing_cannot_keep_its_type(tmp_path_factory, dtype):
    path = save_checkpoint(tmp_path_factory.mktemp("typed"), family="gemma4")
    with pytest.raises(
        ConfigError, match=r"--kv-cache-dtype-skip-layers 3: the layer reads the keys and values of layer 1"
    ):
        resolved(path, kv_cache_dtype=dtype, kv_cache_dtype_skip_layers=["3"])
    kept = resolved(path, kv_cache_dtype=dtype, kv_cache_dtype_skip_layers=["1"]).engine.cache.layer_dtypes
    assert kept == (dtype, "bfloat16", dtype, "bfloat16", "bfloat16")


def test_rows_are_the_last_ones_of_sequences():
    view = type("View", (), {"query_lens": [3, 2]})()
    with pytest.raises(ValueError, match="expected the last ones of each"):
        narrowed([view], np.array([0, 1]))
