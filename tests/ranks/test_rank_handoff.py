"""Handoffs between engines with one rank and with two: answers on leased blocks have the bits of one engine, and pairs of
engines whose pages cannot be arranged anew say so at their agreement."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from core import LLM, SamplingParams
from core_kv_connectors.peers.handshake import Agreement
from core_kv_connectors.peers.page_shape import PageShape, arrangement
from tests.engine.kv_handoffs import connector_of, consuming, decode, handoffs_of, new_port, prefill, producing, told
from tests.tiny_models import save_checkpoint

PROMPT = [1, *(3 + index % 250 for index in range(96))]
ROOM = {"max_model_len": 128, "num_gpu_blocks_override": 26, "max_num_seqs": 2, "dtype": "float32"}
PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=8, ignore_eos=True, logprobs=2, n=2)
TWO = {"tensor_parallel_size": 2}


@pytest.mark.parametrize("family", ["llama", pytest.param("gemma3", marks=pytest.mark.slow), "deepseek_v2"])
@pytest.mark.parametrize(("produces", "consumes"), [({}, TWO), (TWO, {})], ids=["1 to 2", "2 to 1"])
def test_blocks_of_one_rank_serve_two_and_back(
    family: str, produces: dict[str, Any], consumes: dict[str, Any], tmp_path: Path
) -> None:
    model = str(save_checkpoint(tmp_path / family, family=family))
    settings: dict[str, Any] = {"model": model, "use_tqdm_on_load": False, **ROOM}
    with LLM(**settings) as alone:
        (output,) = alone.generate([{"prompt_token_ids": PROMPT}], PARAMS, use_tqdm=False)
        expected = told(output)
    port = new_port()
    with LLM(**settings, **producing(port), **produces) as one, LLM(**settings, **consuming(port), **consumes) as other:
        answer = decode(other, "a", PROMPT, PARAMS, prefill(one, "a", PROMPT))
        assert told(answer) == expected
        assert answer.num_cached_tokens >= 80, handoffs_of(other).counts()
        counts = handoffs_of(other).counts()
        assert counts["claim.pages_received"] == counts["claim.pages_announced"] and not counts["claim.pages_bad"]
        assert not counts["buffered_bytes"] and not connector_of(other).claimed()


def test_every_byte_has_its_place_and_comes_back() -> None:
    """Keys and values by heads, a latent that every rank has, and two heads for four ranks."""
    whole = PageShape.of(1, [64, 64, 24, 32])
    dice = np.random.default_rng(1)
    for ranks, places in ((2, [32, 32, 24, 16]), (4, [16, 16, 24, 16])):
        parts = PageShape.of(ranks, places)
        assert not whole.why_not(parts) and not parts.why_not(whole)
        page = dice.integers(0, 256, whole.page_bytes, np.uint8)
        divided, back = np.zeros(parts.page_bytes, np.uint8), np.zeros(whole.page_bytes, np.uint8)
        divide, join = arrangement(whole, parts), arrangement(parts, whole)
        assert divide is not None and join is not None
        divide(page, divided)
        join(divided, back)
        assert np.array_equal(page, back)
        of_rank = divided.reshape(ranks, -1)
        for rank in range(ranks):
            head = places[0] * rank
            assert np.array_equal(of_rank[rank, : places[0]], page[head : head + places[0]])
            assert np.array_equal(of_rank[rank, sum(places[:2]) : sum(places[:3])], page[128:152]), (
                "each has the latent"
            )
            last = places[3] * (rank * (32 // places[3]) // ranks)
            assert np.array_equal(of_rank[rank, sum(places[:3]) :], page[152 + last : 152 + last + places[3]])
    assert arrangement(whole, whole) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "sentence"),
    [
        (PageShape.of(2, [8, 8]), PageShape.of(4, [4, 4]), "4 ranks instead of 2: pages are arranged anew where one"),
        (PageShape.of(1, [8, 8]), PageShape(2), "2 ranks instead of 1: these pages are not divided by heads"),
        (PageShape.of(1, [8, 8]), PageShape.of(2, [4, 3]), "layer 1 has 3 bytes instead of 8, which divides"),
        (PageShape.of(1, [8, 8]), PageShape.of(2, [4]), "pages of 1 layers instead of 2"),
        (PageShape.of(1, [8, 8]), PageShape.of(1, [8]), "layers of [(8, 1)] bytes and number instead of [(8, 2)]"),
        (PageShape.of(1, [8, 8]), PageShape.of(3, [4, 4]), "3 ranks instead of 1: layer 0 has 4 bytes instead of 8"),
    ],
)
def test_pairs_that_do_not_fit_are_refused_with_both_values(ours: PageShape, theirs: PageShape, sentence: str) -> None:
    mine = Agreement(b"", "ab", ours.page_bytes, shape=ours)
    other = Agreement(b"", "ab", theirs.page_bytes, shape=theirs)
    assert sentence in mine.difference(other.terms(b""))
    assert mine.difference(mine.terms(b"")) == ""
    strange = Agreement(b"", "cd", theirs.page_bytes, shape=theirs)
    first = sentence if theirs.ranks != ours.ranks else "fingerprint cd instead of ab"
    assert first in mine.difference(strange.terms(b"")), "the number of ranks says more than a fingerprint"


def test_only_tcp_arranges_pages_and_a_shape_must_have_its_bytes() -> None:
    whole, parts = PageShape.of(1, [8]), PageShape.of(2, [4])
    moved = Agreement(b"", "ab", 8, "nixl", whole)
    assert "only tcp arranges" in moved.difference(Agreement(b"", "ab", 8, "nixl", parts).terms(b""))
    lies = Agreement(b"", "ab", 1 << 40, shape=parts)
    assert "bytes in a shape of 8" in Agreement(b"", "ab", 8, shape=whole).difference(lies.terms(b""))


def test_what_an_end_says_about_its_shape_is_limited() -> None:
    ours = PageShape.of(1, [8, 8])
    for said in ([1, [[8, -5]]], [0, []], [1, [[0, 1]]], [1, [[8, 1 << 40]]], [1, [[8, 2]], 3]):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(said), type=PageShape)
    huge = msgspec.msgpack.decode(msgspec.msgpack.encode([2, [[1, 1 << 32]]]), type=PageShape)
    assert "pages of 4294967296 layers instead of 2" in ours.why_not(huge)
    assert ours.why_not(PageShape(1 << 20, [(1, 2)])), "more ranks than any engine has"
