"""`--kv-cache-dtype fp8_ds_mla`: the numbers of FlashMLA's layout, attention over them, and the bits of a whole engine."""

from pathlib import Path

import pytest
import torch
from kernels.test_cpu_paged_latent import Latents, spec_of

from core.api.errors import CoreError
from core.api.specs import KV_TYPES, LatentSpec
from core_config.resolve import resolve
from core_runtime.executor.worker import Worker
from tests.models.test_indexed_models import ROOM, TREE, WAYS, sampled
from tests.tiny_models import INDEXED, save_checkpoint

PACKED = "fp8_ds_mla"
GROUPED = LatentSpec(3, rank=512, rope_size=64, head_size_nope=8, head_size_v=8, scale=0.05)
RANK = 128


def rounded(c: torch.Tensor, k_pe: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents and rotated keys as FlashMLA's documentation describes their storage, read back: four groups of 128 numbers in
    e4m3 with a float32 scale each, the largest magnitude divided by 448, and rotated numbers in bfloat16."""
    parts = []
    for part in c.split(128, dim=1):
        scale = part.abs().max(dim=1, keepdim=True).values / torch.tensor(448.0)
        stored = (part / scale).to(torch.float8_e4m3fn)
        parts.append((stored.to(torch.float32) * scale).to(torch.bfloat16))
    return torch.cat(parts, dim=1).float(), k_pe.to(torch.bfloat16).float()


def test_a_token_has_656_bytes():
    assert KV_TYPES[PACKED].token_bytes(GROUPED) == 656


@pytest.mark.parametrize("block_size", [16, 5])
def test_attention_reads_the_numbers_of_the_layout(kernels, block_size):
    """Bit for bit that of a cache in bfloat16 which holds these numbers."""
    lengths, steps = [200, 9, 7], ([150, 9, 0], [1, 0, 6], [49, 0, 1])
    spec = spec_of(3, 512, 64)
    packed, plain = (Latents(spec, lengths, block_size, dtype) for dtype in (PACKED, "bfloat16"))
    for index, keys in enumerate(packed.k):
        # Groups of unlike sizes, so that each needs a scale of its own.
        keys *= torch.logspace(-2, 1, keys.shape[-1])
        c, k_pe = rounded(*keys[:, 0].split([512, 64], 1))
        plain.k[index] = torch.cat([c, k_pe], 1).unsqueeze(1)
        assert not torch.equal(plain.k[index], keys)
    for counts in steps:
        found, want = packed.step(counts), plain.step(counts)
        assert found.keys() == want.keys()
        assert all(torch.equal(found[index], want[index]) for index in found)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("packed"), "deepseek_v32", kv_lora_rank=RANK)


@pytest.fixture(scope="module")
def plainest(indexed: Path) -> list:
    return sampled(indexed, alone=True, enable_prefix_caching=False, kv_cache_dtype=PACKED)


@pytest.mark.parametrize("way", WAYS)
def test_bits_are_equal(indexed: Path, plainest: list, way: str) -> None:
    assert sampled(indexed, kv_cache_dtype=PACKED, **WAYS[way]) == plainest


def test_a_tree_of_drafts_changes_no_bit(indexed: Path, plainest: list) -> None:
    drafts = {"method": "draft_model", "model": str(indexed), "adaptive": False, **TREE}
    assert sampled(indexed, speculative_config=drafts, kv_cache_dtype=PACKED) == plainest


def test_numbers_differ_from_those_of_other_types(indexed: Path, plainest: list) -> None:
    assert sampled(indexed, kv_cache_dtype="bfloat16") != plainest


def test_memory_is_planned(indexed: Path) -> None:
    planned = resolve({"model": str(indexed), **ROOM, "kv_cache_dtype": PACKED}, context="llm", environ={})
    worker = Worker(planned.engine)
    try:
        assert worker.kv_nbytes == planned.memory.kv
        one = RANK + 4 + 2 * 8 + 2 * INDEXED["index_head_dim"]
        assert planned.memory.kv_per_token == 3 * one
    finally:
        worker.close()


@pytest.mark.parametrize(
    "family, settings, sentence",
    [
        ("llama", {}, "kv_cache_dtype: needs a type for layers without latents, got fp8_ds_mla"),
        ("deepseek_v3", {}, "rank: needs a multiple of 128"),
        ("deepseek_v3", {"attention_backend": "torch_sdpa"}, "torch_sdpa.*fp8_ds_mla"),
        (
            "deepseek_v3",
            {"tensor_parallel_size": 2, "decode_context_parallel_size": 2, "block_size": None},
            "fp8_ds_mla: .*--decode-context-parallel-size",
        ),
    ],
)
def test_elsewhere_it_is_refused_by_name(tmp_path, family, settings, sentence) -> None:
    given = {"model": str(save_checkpoint(tmp_path, family)), **ROOM, "kv_cache_dtype": PACKED, **settings}
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(CoreError, match=sentence):
        resolve(given, context="llm", environ={})
