"""Trees of drafts: the same tokens and bits as without, and keys that lie where they belong afterwards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sampling.reference import Row, bound, draw, sequence

from core import LLM, SamplingParams
from core_runtime.contracts import ProposerInput
from core_runtime.sampling import Sampler
from core_runtime.sampling.drafts.draft_tree import DraftTree
from tests.tiny_models import save_checkpoint

PARENTS = (-1, -1, 0, 1, 1, 4, 3)
RIGHT_PATHS = ((1, 4, 5), (0, 2), (1, 3, 6), ())
"""Drafts that continue the text as it will be, in turn; all others are wrong."""

PROMPTS = [
    "the quick brown fox jumps over the lazy dog and the quick brown fox jumps again",
    "abcabcabcabcabcabcabc",
    "z",
    "the quick brown fox jumps over the lazy dog and then sleeps",
]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.9, seed=5, max_tokens=40, ignore_eos=True, top_p=0.9, logprobs=2),
    SamplingParams(temperature=1.2, seed=6, max_tokens=33, ignore_eos=True, top_k=50, repetition_penalty=1.1),
    SamplingParams(temperature=0.7, seed=7, max_tokens=40, ignore_eos=True, min_p=0.05, n=2),
]


class Oracle:
    """A proposer that knows the texts, prompt and answer, and guesses right on one path of its tree."""

    tree = PARENTS

    def __init__(self, texts: Sequence[list[int]]) -> None:
        self.texts = texts
        self.known: dict[tuple[str, int], list[int]] = {}

    def on_start(self, key: tuple[str, int], token_ids: list[int]) -> None:
        self.known[key] = list(token_ids)

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        found = []
        for key, delta, budget in zip(batch.keys, batch.token_deltas, batch.budget, strict=True):
            self.known[key] += delta
            found.append(self.drafts(self.known[key])[:budget])
        return found

    def on_finished(self, key: tuple[str, int]) -> None:
        self.known.pop(key, None)

    def drafts(self, known: list[int]) -> list[int]:
        length = len(known)
        (text, *_) = [text for text in self.texts if text[:length] == known]
        coming = [*text[length:], *[0] * len(PARENTS)]
        right = RIGHT_PATHS[length % len(RIGHT_PATHS)]
        drafts = []
        for index, path in enumerate(DraftTree(PARENTS).paths):
            token = coming[len(path) - 1]
            drafts.append(token if index in right else token ^ 1)
        return drafts


def answers(llm: LLM, rounds: int) -> tuple[list[list[int]], list[Any]]:
    """Texts as tokens, and what was told of each answer."""
    for _ in range(rounds):
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    texts = []
    told = []
    for output in outputs:
        for choice in output.outputs:
            texts.append([*output.prompt_token_ids, *choice.token_ids])
            logprobs = [{token: entry.logprob for token, entry in row.items()} for row in choice.logprobs or []]
            told.append((choice.token_ids, logprobs))
    return texts, told


PLAIN_TORCH = {"attention_backend": "torch_sdpa", "numerics": "reference"}


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("tiny_llama", {}),
        ("tiny_llama", {"block_size": 1, "dtype": "bfloat16"}),
        ("tiny_llama", {"num_gpu_blocks_override": 24}),
        ("tiny_gemma3", {"dtype": "bfloat16"}),
        ("tiny_llama", PLAIN_TORCH),
    ],
)
def test_trees_change_no_bit(
    model: str, settings: dict[str, Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second round, prefixes are found whose last tokens were drafts that have been moved."""
    path: Path = request.getfixturevalue(model)
    given = {"model": str(path), "max_model_len": 128, "max_num_seqs": 8, "dtype": "float32", **settings}
    with LLM(**given, enable_prefix_caching=False) as llm:
        texts, expected = answers(llm, rounds=1)
    monkeypatch.setattr("core_speculative.ngram.proposer.NgramProposer", lambda **_: Oracle(texts))
    with LLM(
        **given, speculative_config={"method": "ngram", "num_speculative_tokens": len(PARENTS), "adaptive": False}
    ) as llm:
        _, found = answers(llm, rounds=2)
        stats = llm.stats()
    assert found == expected
    assert stats.spec_num_accepted_tokens > 0.8 * stats.spec_num_drafts


def test_a_model_with_states_verifies_the_first_chain(tiny_lfm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(model=str(tiny_lfm2), max_model_len=128, dtype="float32") as llm:
        texts, expected = answers(llm, rounds=1)
    monkeypatch.setattr("core_speculative.ngram.proposer.NgramProposer", lambda **_: Oracle(texts))
    drafts = {"method": "ngram", "num_speculative_tokens": len(PARENTS), "adaptive": False}
    with LLM(model=str(tiny_lfm2), max_model_len=128, dtype="float32", speculative_config=drafts) as llm:
        _, found = answers(llm, rounds=1)
        stats = llm.stats()
    assert found == expected
    assert stats.spec_num_draft_tokens <= 2 * stats.spec_num_drafts


def test_a_walk_follows_what_is_sampled() -> None:
    tree = DraftTree(PARENTS)
    drafts = [10, 11, 12, 13, 14, 15, 16]
    sampled = {-1: 11, 1: 14, 4: 15, 5: 99}
    assert tree.walk(drafts, [sampled.get(index, 0) for index in range(-1, 7)]) == [1, 4, 5]
    assert tree.walk(drafts, [10, 12, 0, 99, 0, 0, 0, 0]) == [0, 2]
    assert tree.walk(drafts, [0] * 8) == []
    assert tree.cut(4).walk(drafts[:4], [11, 0, 13, 0, 0]) == [1, 3]
    assert tree.paths[6] == (1, 3, 6) and tree.first_chain == (0, 2) and not tree.is_chain
    assert DraftTree((-1, 0, 1)).is_chain


def test_a_draft_follows_an_earlier_one() -> None:
    with pytest.raises(ValueError, match="draft 1 of a tree follows draft 2"):
        DraftTree((-1, 2, 1))


@pytest.fixture(scope="module")
def plain(tiny_llama: Path) -> list[Any]:
    with LLM(model=str(tiny_llama), max_model_len=128, dtype="float32") as llm:
        return answers(llm, rounds=1)[1]


@pytest.mark.parametrize("draft", ["itself", "another"])
def test_a_draft_model_guesses_several_tokens_for_a_position(
    draft: str, tiny_llama: Path, plain: list[Any], tmp_path: Path
) -> None:
    model = tiny_llama if draft == "itself" else save_checkpoint(tmp_path, seed=3, num_hidden_layers=1)
    tree = "[(0,), (1,), (2,), (0, 0), (0, 1), (0, 0, 0)]"
    drafts = {
        "method": "draft_model",
        "model": str(model),
        "num_speculative_tokens": 6,
        "adaptive": False,
        "speculative_token_tree": tree,
    }
    with LLM(model=str(tiny_llama), max_model_len=128, dtype="float32", speculative_config=drafts) as llm:
        _, found = answers(llm, rounds=2)
        stats = llm.stats()
    assert found == plain
    per_step = stats.spec_num_accepted_tokens / stats.spec_num_drafts
    assert per_step > 2.7 if draft == "itself" else per_step > 0


def test_runners_up_are_those_that_win_without_the_ones_before() -> None:
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(1)) * 2
    sampler = Sampler(200)
    asked = [sequence(seed=7, temperature=temperature) for temperature in (0.0, 0.8, 1.5)]
    rows = bound([Row(one) for one in asked])
    sampler.sample(logits, rows)
    order = np.stack([rows.tokens, *sampler.runners_up(logits, rows, 0, 3)])
    for row, one in enumerate(asked):
        left = logits[row].clone()
        for token in order[:, row].tolist():
            assert token == draw(sampler, left[None], [Row(one)])[0].token_id
            left[token] = -np.inf
