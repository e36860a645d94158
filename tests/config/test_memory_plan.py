"""The memory plan and the numerics id, against what the engine then really has."""

from __future__ import annotations

import pytest

from core.config.resolve import resolve
from core.executor.worker import Worker
from core.plugin.registry import PluginRegistry
from tests.real_models import gemma3_path, smollm2_path

SMALL = {"device": "cpu", "max_num_seqs": 2, "max_num_batched_tokens": 64, "use_tqdm_on_load": False}


@pytest.fixture(scope="module")
def registry():
    return PluginRegistry()


def compare(registry, path, **arguments):
    given = {"model": str(path), "kv_cache_memory_bytes": 1 << 26, "max_model_len": 64, **SMALL, **arguments}
    done = resolve(given, context="llm", registry=registry, environ={})
    worker = Worker(done.engine)
    try:
        plan = done.memory
        print(f"weights {plan.weights} planned, {worker.weights_nbytes} held; KV {plan.kv} and {worker.kv_nbytes}")
        workspace = worker.runner.forward.model.workspace.nbytes
        return (
            (plan.weights, worker.weights_nbytes),
            (plan.kv, worker.kv_nbytes),
            (plan.workspace, workspace),
            (
                done.numerics,
                worker.numerics,
            ),
        )
    finally:
        worker.close()


@pytest.mark.parametrize("path", [smollm2_path, gemma3_path])
def test_real_models_use_what_was_planned(registry, path):
    weights, cache, workspace, numerics = compare(registry, path())
    for planned, used in (weights, cache, workspace):
        assert planned == pytest.approx(used, rel=0.03)
    assert numerics[0] == numerics[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", ["tiny_llama", "tiny_gemma3"])
def test_plain_models_use_exactly_what_was_planned(registry, request, family, dtype):
    """Small matrices are mostly padding, so the padding must be right as well."""
    found = compare(registry, request.getfixturevalue(family), dtype=dtype)
    assert all(planned == used for planned, used in found), found


@pytest.mark.parametrize("backend", ["cpu_paged", "torch_sdpa"])
@pytest.mark.parametrize("dtype", ["float16", "fp8", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head"])
def test_every_kv_type_uses_exactly_what_was_planned(registry, tiny_llama, dtype, backend):
    found = compare(registry, tiny_llama, kv_cache_dtype=dtype, attention_backend=backend)
    assert all(planned == used for planned, used in found), found


def test_the_reference_operations_are_planned_too(registry, tiny_llama):
    plain = PluginRegistry(words="no:cpu_native")
    found = compare(plain, tiny_llama, attention_backend="torch_sdpa")
    assert all(planned == used for planned, used in found), found
    assert found[3][0].startswith("torch-")


def test_gemma3_holds_many_times_more_tokens_with_groups(registry):
    """In the same bytes, 15 of 18 layers keep 512 tokens only; planned and held bytes agree either way."""
    tokens = {}
    for disabled in (True, False):
        weights, cache, _, _ = compare(registry, gemma3_path(), disable_hybrid_kv_cache_manager=disabled)
        assert cache[0] == cache[1] and weights[0] == pytest.approx(weights[1], rel=0.03)
        given = {"model": str(gemma3_path()), "kv_cache_memory_bytes": 256 << 20, "device": "cpu"}
        done = resolve(
            given | {"disable_hybrid_kv_cache_manager": disabled}, context="llm", registry=registry, environ={}
        )
        tokens[disabled] = done.memory.tokens
    assert tokens[True] < 15_000 and tokens[False] > 3 * tokens[True]


def test_what_fits_is_told(registry, tiny_llama):
    block = 3 * 2 * 16 * 2 * 2 * 16
    done = resolve(
        {"model": str(tiny_llama), "kv_cache_memory_bytes": 41 * block, "max_model_len": 256, "device": "cpu"},
        context="llm",
        registry=registry,
        environ={},
    )
    plan = done.memory
    assert (plan.kv_per_token, plan.tokens, plan.max_concurrency) == (block / 16, 640, 2.5)
