"""Same request, same tokens, and the same bits of their logprobs, over the table of `axes`.

A slice runs with every `make test`; `make test-matrix` runs all: for the tiny models every pair of ways to run in each
pair of types, for the real ones every pair of ways and types.
"""

from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from tests.declared_models import DECLARED
from tests.declared_models import FAMILIES as ROUNDED
from tests.determinism.axes import BASELINE, IMPOSSIBLE, RUN_AXES, TYPE_AXES, Case, covering, label
from tests.determinism.runs import Bits, companions, requests, run, settings
from tests.executor.test_doubles import double
from tests.kv.conversations import INDEXED, MORE_STREAMS, checkpoint
from tests.media.checkpoints import SAVE
from tests.real_models import gemma3_path, smollm2_bf16_path, smollm2_path

KERNELS: dict[str, dict[str, Any]] = {
    "native": {},
    "torch": {"plugins": "no:cpu_native", "attention_backend": "torch_sdpa", "numerics": "reference"},
    "mixed": {"attention_backend": "torch_sdpa", "numerics": "reference"},
    "device": double("watched"),
    "offload": {**double("watched"), "offload_group_size": 1},
    "in place": {**double("watched"), "cpu_offload_gb": 1.0},
    "declared": DECLARED,
    "ranks": {"tensor_parallel_size": 2},
    "stages": {"pipeline_parallel_size": 2},
}
PLAINEST = {"offload": "device", "in place": "device", "ranks": "native", "stages": "native"}
"""Kernels whose bits are those of others: weights in host memory have the bits of weights on the device, and several
processes those of one.
"""
WATCHED = ("device", "offload", "in place")
"""Doubles that watch their host, which take seconds for a token of all requests."""
TINY, REAL = ("tiny_llama", "tiny_gemma3"), ("smollm2", "smollm2_bf16", "gemma3")
FAMILIES = (*MORE_STREAMS, *INDEXED)
"""Tiny models of other families."""
SEEING = ("llava", "qwen3_vl")
"""Tiny models whose prompts have pictures too: rows in place of embeddings; three rotary positions and rows behind blocks."""
TYPES = covering(TYPE_AXES)
RUNS = covering(RUN_AXES)
BOTH = covering(TYPE_AXES | RUN_AXES)
Row = tuple[str, str, Case]

TYPES_OF_DOUBLES = {"dtype": "float32", "kv": "auto"}
HERE = [case for case in RUNS if case["client"] == "inproc"]
SLICE: list[Row] = [
    ("native", "tiny_gemma3", {"dtype": "bfloat16", "kv": "int8_per_token_head"} | case)
    for case in (RUNS[1], *HERE[:5])
]
SLICE += [("torch", "tiny_llama", {"dtype": "float32", "kv": "auto"} | case) for case in HERE[:2]]
SLICE += [("native", "tiny_llama", {"dtype": "bfloat16", "kv": "k8v4_per_token_head"} | case) for case in HERE[2:4]]
FULL: list[Row] = [
    *(("native", model, types | case) for model in TINY for types in TYPES for case in RUNS),
    *(("torch", model, case) for model in TINY for case in BOTH),
    *(("mixed", "tiny_llama", case) for case in BOTH),
    *(("offload", "tiny_llama", TYPES_OF_DOUBLES | case) for case in RUNS),
    *(("in place", "tiny_llama", TYPES_OF_DOUBLES | case) for case in RUNS[::4]),
    *(("declared", model, case) for model in ROUNDED for case in BOTH),
    *((several, model, case) for several in ("ranks", "stages") for model in TINY for case in BOTH),
    *(
        ("native", model, case)
        for model in (*REAL, *FAMILIES, *SEEING)
        for case in BOTH
        if model != "zamba2"
        or case["adapters"] == "none"  # adapters are written under names that its files do not have
    ),
]


def rows(table: list[Row]) -> list[Any]:
    return [pytest.param(*row, id=f"{row[0]}-{row[1]}-{label(row[2])}") for row in table]


@pytest.fixture(scope="session")
def expected(request: pytest.FixtureRequest) -> Callable[..., tuple[Path, Bits]]:
    """Checkpoint and results of the plainest way to run, made when they are first asked for."""
    folder = request.getfixturevalue("tmp_path_factory")
    real = {"smollm2": smollm2_path, "smollm2_bf16": smollm2_bf16_path, "gemma3": gemma3_path}

    @cache
    def family(model: str) -> Path | None:
        if model in SEEING:
            return SAVE[model](folder.mktemp(model))
        return checkpoint(model, folder.mktemp(model) / "model") if model in (*FAMILIES, *ROUNDED) else None

    @cache
    def find(kernels: str, model: str, dtype: str, kv: str, adapters: str) -> tuple[Path, Bits]:
        path = real[model]() if model in real else family(model) or request.getfixturevalue(model)
        plainest = BASELINE | {"adapters": adapters}
        return path, run(path, plainest, arguments(kernels, dtype, kv), max_tokens(model, kernels))

    return find


def arguments(kernels: str, dtype: str, kv: str) -> dict[str, Any]:
    return {**KERNELS[kernels], "dtype": dtype, "kv_cache_dtype": kv}


def max_tokens(model: str, kernels: str) -> int:
    if kernels in WATCHED:
        return 4
    return 12 if model in REAL else 40


def check(expected: Callable[..., tuple[Path, Bits]], kernels: str, model: str, case: Case) -> None:
    # Beside adapters, requests of the base have the bits of an engine without any.
    whose = "own" if case["adapters"] == "own" else "none"
    path, bits = expected(PLAINEST.get(kernels, kernels), model, case["dtype"], case["kv"], whose)
    given = arguments(kernels, case["dtype"], case["kv"])
    found = run(path, case, given, max_tokens(model, kernels), seed=len(label(case)))
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in bits]
    assert found == bits


@pytest.mark.parametrize(("kernels", "model", "case"), rows(SLICE))
def test_slice(expected: Callable[..., tuple[Path, Bits]], kernels: str, model: str, case: Case) -> None:
    check(expected, kernels, model, case)


@pytest.mark.matrix
@pytest.mark.parametrize(("kernels", "model", "case"), rows(FULL))
def test_all(expected: Callable[..., tuple[Path, Bits]], kernels: str, model: str, case: Case) -> None:
    check(expected, kernels, model, case)


@pytest.mark.parametrize("block", RUN_AXES["block"])
def test_tight_memory_really_preempts(tiny_gemma3: Path, block: str) -> None:
    tight = BASELINE | {"memory": "tight", "block": block}
    batch = companions(0, 40) + requests(40)
    llm = LLM(**settings(tiny_gemma3, tight, {}))
    llm.generate([prompt for prompt, _ in batch], [params for _, params in batch], use_tqdm=False)
    assert llm.stats().num_preemptions > 0
    llm.close()


def test_plain_torch_without_reference_numerics_is_told_apart(tiny_llama: Path) -> None:
    """The matrix can fail: what `core config explain` says is waived is really seen here."""
    fast = {**arguments("torch", "float32", "auto"), "numerics": "fast"}
    alone = run(tiny_llama, BASELINE, fast, 40)
    assert run(tiny_llama, BASELINE | {"company": "random", "chunk": "7"}, fast, 40) != alone


def test_drafts_are_made_and_seeds_matter(tiny_llama: Path) -> None:
    llm = LLM(**settings(tiny_llama, BASELINE | {"drafts": "ngram"}, {}))
    prompt = requests(1)[2][0]
    drawn = [
        llm.generate([prompt], SamplingParams(temperature=0.9, seed=seed, max_tokens=40), use_tqdm=False)[0]
        for seed in (1, 2)
    ]
    assert drawn[0].outputs[0].token_ids != drawn[1].outputs[0].token_ids
    llm.close()


@pytest.mark.parametrize("axes", [RUN_AXES, TYPE_AXES | RUN_AXES], ids=["runs", "runs and types"])
def test_every_pair_occurs(axes: dict[str, tuple[str, ...]]) -> None:
    cases = covering(axes)
    for (a, first), (b, second) in combinations(axes.items(), 2):
        seen = {(case[a], case[b]) for case in cases}
        possible = {(x, y) for x in first for y in second if frozenset({(a, x), (b, y)}) not in IMPOSSIBLE}
        assert seen == possible
