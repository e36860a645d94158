"""Attention on Triton kernels, in the interpreter: values against a dense float64 reference, bits against each other."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from core.api.errors import PluginError
from core.api.specs import AttentionQuery, AttentionSpec, LatentSpec
from core_kit.oracles.numbers import close, generator, same_bits
from core_kit.oracles.padding import NO_PADDING, Padding
from core_kit.oracles.reference import Conversation, PagedRun, as_attention, batch_view, dense_attention
from core_kit.oracles.trees import compared_rows

pytest.importorskip("triton")
from core_attention.triton.backend import TritonAttention
from core_attention.triton.limits import unsupported

GQA = AttentionSpec(6, 2, 32, 32, 0.17)
SMALL = AttentionSpec(2, 1, 16, 16, 0.25)
LATENT = LatentSpec(4, rank=32, rope_size=16, head_size_nope=24, head_size_v=24, scale=0.16)
SPECS: dict[str, AttentionSpec | LatentSpec] = {
    "grouped": GQA,
    "padded and a narrow value": AttentionSpec(4, 1, 80, 40, 0.11),
    "odd": AttentionSpec(3, 3, 7, 7, 0.4),
    "window and sinks": AttentionSpec(4, 2, 32, 32, 0.17, window=21, sinks=True),
    "chunks and a cap": AttentionSpec(4, 2, 32, 32, 0.3, window=21, chunked=True, cap=5.0),
    "slopes": AttentionSpec(6, 2, 32, 32, 0.144, alibi=True),
    "latents": LATENT,
}
ALONE = 0
DIVIDED = 10**6
QUICK = {("window and sinks", DIVIDED), ("latents", ALONE)}
"""What `make test` runs; `make gpu-interpreter` runs the rest."""


def conversations(spec: Any, dtype: str, *lengths: int) -> list[Conversation]:
    random = generator("attention")
    return [Conversation.random(length, spec, dtype, random) for length in lengths]


def run_of(spec: Any, dtype: str, talks: list[Conversation], wanted: int = DIVIDED, block_size: int = 16) -> PagedRun:
    return PagedRun(TritonAttention(wanted), spec, block_size, dtype, talks, generator("tables"))


def expected(run: PagedRun, talk: Conversation, rows: int) -> torch.Tensor:
    k, v = talk.held
    return dense_attention(talk.q[-rows:], k, v, as_attention(run.spec), run.params)


def fill(run: PagedRun, lengths: list[int]) -> None:
    """Write the first tokens of each conversation, without attending."""
    alive = [i for i, length in enumerate(lengths) if length]
    some = [lengths[i] for i in alive]
    view = batch_view(some, some, [run.tables[i] for i in alive], run.block_size)
    k = torch.cat([run.conversations[i].k[: lengths[i]] for i in alive])
    v = torch.cat([run.conversations[i].v[: lengths[i]] for i in alive])
    run.write(k, v, run.backend.build(view))


def check(spec: Any, dtype: str, wanted: int = ALONE) -> None:
    """A prompt, a chunk and a last token in one step."""
    talks = conversations(spec, dtype, 9, 37, 150)
    run = run_of(spec, dtype, talks, wanted)
    fill(run, [0, 20, 149])
    outs = run.step([9, 17, 1], [9, 37, 150])
    for talk, out in zip(talks, outs, strict=True):
        close(out, expected(run, talk, len(out)), 5e-5, f"{dtype}, {len(out)} rows", axis=-1)


MIXED = [
    pytest.param(spec, wanted, id=name, marks=() if (name, wanted) in QUICK else pytest.mark.gpu_interpreter)
    for name, spec in SPECS.items()
    for wanted in (ALONE, DIVIDED)
]


@pytest.mark.parametrize("spec, wanted", MIXED)
def test_mixed_steps_equal_dense_attention(spec: Any, wanted: int) -> None:
    check(spec, "float32", wanted)


@pytest.mark.gpu_interpreter
@pytest.mark.parametrize("dtype", ["bfloat16", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head"])
def test_every_cache_gives_back_what_its_type_holds(dtype: str) -> None:
    check(GQA, dtype, DIVIDED)


def test_queries_of_16_bits_are_multiplied_as_such() -> None:
    (talk,) = conversations(GQA, "bfloat16", 150)
    talk.q = talk.q.bfloat16()
    run = run_of(GQA, "bfloat16", [talk])
    fill(run, [149])
    (out,) = run.step([1], [150])
    close(out, expected(run, talk, 1), 2e-2, "queries in bfloat16", axis=-1)


@pytest.mark.parametrize(
    "spec",
    [
        SMALL,
        pytest.param(GQA, marks=pytest.mark.gpu_interpreter),
        pytest.param(SPECS["window and sinks"], marks=pytest.mark.gpu_interpreter),
        pytest.param(LATENT, marks=pytest.mark.gpu_interpreter),
    ],
    ids=["small", "grouped", "window", "latents"],
)
def test_bits_depend_on_the_sequence_alone(spec: Any) -> None:
    mine, short = conversations(spec, "bfloat16", 300, 3)
    alone = run_of(spec, "bfloat16", [mine], ALONE)
    fill(alone, [270])
    (whole,) = alone.step([30], [300])
    for wanted in (ALONE, DIVIDED):
        company = run_of(spec, "bfloat16", [short, mine], wanted, block_size=64)
        fill(company, [0, 292])
        _, rows = company.step([3, 8], [3, 300])
        same_bits(rows, whole[-8:], f"a later chunk in company and other blocks, {wanted} programs wanted")
        (row,) = company.step([0, 1], [3, 300])
        same_bits(row, whole[-1:], f"the last token by itself, {wanted} programs wanted")


@pytest.mark.gpu_interpreter
def test_sections_grow_with_the_position() -> None:
    """A row behind 2048 keys has longer sections than the rows before it in its tile, and the bits that it has alone."""
    spec = AttentionSpec(1, 1, 16, 16, 0.25)
    (talk,) = conversations(spec, "bfloat16", 2060)
    run = run_of(spec, "bfloat16", [talk], ALONE, block_size=128)
    fill(run, [2060])
    (tile,) = run.step([30], [2060])
    close(tile, expected(run, talk, 30), 5e-5, "rows around a longer section", axis=-1)
    divided = run_of(spec, "bfloat16", [talk], DIVIDED, block_size=128)
    fill(divided, [2060])
    (again,) = divided.step([20], [2060])
    same_bits(again, tile[-20:], "the same rows, divided and in another chunk")


@pytest.mark.parametrize("dtype", ["int8_per_token_head", pytest.param("bfloat16", marks=pytest.mark.gpu_interpreter)])
def test_rows_of_a_tree_see_what_rows_of_chains_see(dtype: str) -> None:
    for row, got, chain in compared_rows(TritonAttention(DIVIDED), SMALL, 16, dtype, generator("tree")):
        same_bits(got, chain, row)


@pytest.mark.parametrize(
    "wanted, bare", [(DIVIDED, True), pytest.param(ALONE, False, marks=pytest.mark.gpu_interpreter)]
)
def test_padding_changes_nothing(wanted: int, bare: bool) -> None:
    talks = conversations(SMALL, "bfloat16", 3, 150)
    found = []
    for padding in (NO_PADDING, Padding(bare=bare)):
        run = PagedRun(TritonAttention(wanted), SMALL, 64, "bfloat16", talks, generator("tables"), padding)
        fill(run, [0, 149])
        found.append((torch.cat(run.step([3, 1], [3, 150])), run.raw))
    (plain, plain_cache), (padded, padded_cache) = found
    same_bits(padded, plain, "with padded rows and sequences")
    same_bits(padded_cache, plain_cache, "the cache")


def test_a_layer_that_it_cannot_serve_is_refused_with_reasons() -> None:
    query = AttentionQuery(AttentionSpec(4, 3, 1024, 64, 0.1, causal=False), "cuda", "nf4", 24)
    codes = {reason.code for reason in unsupported(query)}
    assert codes == {"kv_cache_dtype", "block_size", "head_size", "num_kv_heads", "bidirectional"}
    raw = torch.zeros(2, 1024, dtype=torch.uint8)
    with pytest.raises(PluginError, match="block_size: needs one of 16, 32, 64, 128, got 8"):
        TritonAttention().bind(GQA, 8, "bfloat16", raw)


def test_its_manifest_needs_neither_torch_nor_triton() -> None:
    program = (
        "import sys; from core_attention.triton import manifest; manifest.core_spec(); manifest.core_numerics({});"
        "assert not {'torch', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
