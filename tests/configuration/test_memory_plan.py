"""The memory plan and the numerics id, against what the engine then really has."""

import itertools
import json

import pytest

from core.api.config import SchedulerConfig
from core.api.errors import ConfigError
from core.commands.main import main
from core.plugin.registry import PluginRegistry
from core_config.resolve import resolve
from core_config.stages.step_limits import step_limits
from core_platforms.cuda import manifest as cuda
from core_runtime.executor.worker import Worker
from tests.real_models import gemma3_path, smollm2_path

SMALL = {"device": "cpu", "max_num_seqs": 2, "max_num_batched_tokens": 64, "use_tqdm_on_load": False}


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
            (done.numerics, worker.numerics),
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


@pytest.mark.parametrize(("sequences", "drafts", "rows"), [(2, 0, 64), (70, 0, 70), (50, 3, 200)])
def test_rows_of_logits_are_one_figure_for_plan_and_worker(registry, tiny_llama, sequences, drafts, rows):
    """One for each token that a step can sample, and never less than 64."""
    speculation = {"speculative_config": {"method": "ngram", "num_speculative_tokens": drafts}} if drafts else {}
    given = {"max_num_seqs": sequences, "max_num_batched_tokens": 256, **speculation}
    _, _, (planned, used), _ = compare(registry, tiny_llama, **given)
    assert planned == used
    scheduler = SchedulerConfig(max_num_seqs=sequences, num_speculative_tokens=drafts)
    assert step_limits(scheduler, 260).logit_rows == rows


@pytest.mark.parametrize(("vocab", "rows"), [(32000, 128), (49152, 64), (128256, 64), (262144, 64)])
def test_rows_of_logits_stay_within_their_bytes(vocab, rows):
    """Beyond the budget there are as many as one pass over the head's weights serves well; the rest goes in chunks."""
    scheduler = SchedulerConfig(max_num_seqs=256, num_speculative_tokens=4)
    assert step_limits(scheduler, vocab).logit_rows == rows


def test_a_platform_may_have_room_for_the_rows_of_all_its_sequences():
    """A device draws a step by itself when it has all its rows at once."""
    roomy = cuda.core_spec().capabilities["logits_bytes"]
    many = SchedulerConfig(max_num_seqs=1024)
    assert step_limits(many, 128256, roomy).logit_rows == 1024
    assert step_limits(many, 262144, roomy).logit_rows == 512


@pytest.mark.parametrize("backend", ["cpu_paged", "torch_sdpa"])
@pytest.mark.parametrize("dtype", ["float16", "fp8", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head", "int4"])
def test_every_kv_type_uses_exactly_what_was_planned(registry, tiny_llama, dtype, backend):
    found = compare(registry, tiny_llama, kv_cache_dtype=dtype, attention_backend=backend)
    assert all(planned == used for planned, used in found), found


@pytest.mark.parametrize("backend", ["cpu_paged", "torch_sdpa"])
@pytest.mark.parametrize("skipped", [["sliding_window"], ["0"], ["2", "1"]])
@pytest.mark.parametrize("family", ["tiny_llama", "tiny_gemma3"])
def test_layers_that_keep_their_type_use_exactly_what_was_planned(registry, request, family, skipped, backend):
    given = {"kv_cache_dtype": "int8_per_token_head", "kv_cache_dtype_skip_layers": skipped}
    path = request.getfixturevalue(family)
    if family == "tiny_llama" and skipped == ["sliding_window"]:
        with pytest.raises(
            ConfigError, match=r"^--kv-cache-dtype-skip-layers sliding_window: [^:]*numbers from 0 to 2, or[^:]*$"
        ):
            compare(registry, path, attention_backend=backend, **given)
        return
    found = compare(registry, path, attention_backend=backend, **given)
    assert all(planned == used for planned, used in found), found
    assert "kv-int8_per_token_head+bfloat16@" in found[3][0]


@pytest.mark.parametrize("backend", ["cpu_paged", "torch_sdpa"])
@pytest.mark.parametrize(("whole", "recurrent"), [("bfloat16", "auto"), ("auto", "float16"), ("float16", "float32")])
def test_narrow_states_use_exactly_what_was_planned(registry, tiny_lfm2, whole, recurrent, backend):
    given = {"mamba_cache_dtype": whole, "mamba_ssm_cache_dtype": recurrent, "attention_backend": backend}
    found = compare(registry, tiny_lfm2, **given)
    assert all(planned == used for planned, used in found), found
    assert "+states:" in found[3][0]


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


PROPOSER = """
from typing import Annotated
import msgspec
from core.api.errors import UserError
from core.plugin.hookspecs import PluginSpec, hookimpl
CONTRACT, KIND = 1, "speculative"
class Arguments(msgspec.Struct, frozen=True):
    layers: Annotated[int, msgspec.Meta(description="Layers.")]
@hookimpl
def core_spec(): return PluginSpec(name="heads", arguments=Arguments)
@hookimpl
def core_weights_nbytes(arguments, facts):
    if arguments.layers < 0:
        raise UserError(f"--speculative-config.layers {arguments.layers}: expected a number of layers.")
    return {nbytes}
@hookimpl
def core_load(context): raise AssertionError("the plan loads no proposer")
"""


@pytest.fixture
def heads(tmp_path):
    """heads(answer, **arguments) -> engine arguments of a proposer that tells `answer` bytes."""

    numbers = itertools.count()

    def make(answer="arguments.layers * facts.config['hidden_size'] * 1000", **arguments):
        path = tmp_path / f"heads{next(numbers)}.py"
        path.write_text(PROPOSER.replace("{nbytes}", answer))
        return {
            "plugins": str(path),
            "speculative_config": {"method": "heads", "num_speculative_tokens": 2, **arguments},
        }

    return make


def test_a_proposers_own_weights_are_planned_and_leave_less_for_the_cache(tiny_llama, heads):
    hidden = json.loads((tiny_llama / "config.json").read_text())["hidden_size"]

    def memory(**arguments):
        given = {"model": str(tiny_llama), "gpu_memory_utilization": 0.05, "max_model_len": 64, **SMALL, **arguments}
        return resolve(given, context="llm", environ={}).memory

    without, some, more = memory(), memory(**heads(layers=10)), memory(**heads(layers=500))
    assert (without.proposer, some.proposer, more.proposer) == (0, 10_000 * hidden, 500_000 * hidden)
    assert without.weights == some.weights == more.weights
    left = some.num_blocks * some.block - more.num_blocks * more.block
    assert left == pytest.approx(490_000 * hidden, abs=64 << 20), "what is free changes a little between the two"


def test_weights_larger_than_the_memory_are_refused_with_both_numbers(tiny_llama, heads):
    with pytest.raises(ConfigError) as caught:
        resolve({"model": str(tiny_llama), **SMALL, **heads("1 << 50", layers=1)}, context="llm", environ={})
    (problem,) = caught.value.problems
    assert "its weights need 1048576.0 GiB of memory, and the device has" in problem


def test_explain_prints_a_proposers_weights(tiny_llama, heads, capsys):
    words = ["config", "explain", str(tiny_llama), "--device", "cpu", "--plugins", heads(layers=3)["plugins"]]
    drafts = ["--speculative-config.method", "heads", "--speculative-config.num-speculative-tokens", "2"]
    assert main([*words, *drafts, "--speculative-config.layers", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["memory"]["proposer_bytes"]
    assert told == 3000 * json.loads((tiny_llama / "config.json").read_text())["hidden_size"]
    assert main([*words, *drafts, "--speculative-config.layers", "3"]) == 0
    assert "its own weights" in capsys.readouterr().out
    assert main(words) == 0
    assert "its own weights" not in capsys.readouterr().out


def test_a_proposer_that_cannot_tell_is_a_problem_before_anything_is_loaded(tiny_llama, heads):
    for arguments, words in (
        (heads(layers=-1), "--speculative-config.layers -1: expected a number of layers"),
        (heads("'many'", layers=1), "core_weights_nbytes answered 'many', expected a number of bytes"),
        (heads("1 // 0", layers=1), "core_weights_nbytes failed: ZeroDivisionError"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve({"model": str(tiny_llama), **SMALL, **arguments}, context="llm", environ={})
        assert words in str(caught.value) and len(caught.value.problems) == 1
    with pytest.raises(ConfigError, match="layers"):
        resolve({"model": str(tiny_llama), **SMALL, **heads(lyers=1)}, context="llm", environ={})
