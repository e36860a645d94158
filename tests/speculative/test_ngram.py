"""The ngram proposer against a search by brute force, and its arguments."""

import random

import msgspec
import pytest

from core.plugin.hookspecs import LoadContext
from core_runtime.contracts import Proposer, ProposerInput
from core_speculative.ngram import manifest
from core_speculative.ngram.manifest import NgramArguments
from tests.torch_free import run_torch_free

KEY = ("r", 0)


def proposer(**arguments):
    return manifest.core_load(LoadContext(arguments=NgramArguments(**arguments)))


def drafts(tokens, budget=5, **arguments):
    made = proposer(**arguments)
    made.on_start(KEY, tokens[:-1])
    return made.propose(ProposerInput([KEY], [tokens[-1:]], [budget]))[0]


def brute_force(tokens, budget, shortest, longest):
    for length in range(longest, shortest - 1, -1):
        suffix = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if len(suffix) == length and tokens[start : start + length] == suffix:
                text = list(tokens)
                for i in range(budget):
                    text.append(text[start + length + i])
                return text[len(tokens) :]
    return []


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 3), (2, 4), (3, 3)])
def test_drafts_equal_a_search_by_brute_force(shortest, longest):
    rng = random.Random(shortest * 10 + longest)
    for _ in range(200):
        tokens = [rng.randrange(4) for _ in range(rng.randrange(1, 40))]
        budget = rng.randrange(0, 7)
        found = drafts(tokens, budget, prompt_lookup_min=shortest, prompt_lookup_max=longest)
        assert found == brute_force(tokens, budget, shortest, longest)


def test_token_by_token_equals_all_at_once():
    rng = random.Random(1)
    tokens = [rng.randrange(5) for _ in range(300)]
    grown = proposer()
    grown.on_start(KEY, tokens[:10])
    at = 10
    while at < len(tokens):
        step = rng.randrange(1, 5)
        found = grown.propose(ProposerInput([KEY], [tokens[at : at + step]], [6]))[0]
        at += step
        assert found == drafts(tokens[:at], 6)


def test_longest_match_wins_and_the_latest_of_equal_length():
    assert drafts([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 1, prompt_lookup_max=3, prompt_lookup_min=1) == [9]
    assert drafts([2, 3, 9, 2, 3, 8, 7, 2, 3], 2, prompt_lookup_max=2, prompt_lookup_min=2) == [8, 7]
    assert drafts([1, 2, 3, 4], 3) == []


def test_a_loop_is_proposed_whole():
    assert drafts([5, 6, 5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]


def test_budget_zero_still_takes_tokens_in():
    made = proposer(prompt_lookup_min=1)
    made.on_start(KEY, [1])
    assert made.propose(ProposerInput([KEY], [[2, 3]], [0])) == [[]]
    assert made.propose(ProposerInput([KEY], [[1]], [2])) == [[2, 3]]


def test_sequences_are_independent_and_can_restart():
    made = proposer(prompt_lookup_min=1)
    other = ("r", 1)
    made.on_start(KEY, [1, 2, 3])
    made.on_start(other, [1, 9])
    assert made.propose(ProposerInput([KEY, other], [[1], [1]], [1, 1])) == [[2], [9]]
    made.on_finished(KEY)
    made.on_finished(KEY)
    made.on_start(KEY, [1, 7])
    assert made.propose(ProposerInput([KEY], [[1]], [1])) == [[7]]


def test_repetitive_text_is_drafted_well():
    """What the plugin is for: text that quotes itself."""
    rng = random.Random(3)
    quote = [rng.randrange(1000) for _ in range(50)]
    made = proposer()
    made.on_start(KEY, [*quote, 2000, *quote[:3]])
    at = steps = 0
    text = quote[3:]
    delta: list[int] = []
    while at < len(text):
        found = made.propose(ProposerInput([KEY], [delta], [4]))[0]
        accepted = next((i for i, (a, b) in enumerate(zip(found, text[at:], strict=False)) if a != b), len(found))
        delta = text[at : at + accepted + 1]
        at += len(delta)
        steps += 1
    assert steps <= len(text) / 4


def test_arguments():
    assert isinstance(manifest.core_load(LoadContext()), Proposer)
    assert [NgramArguments(prompt_lookup_max=n).shortest for n in (1, 2, 4, 5)] == [1, 1, 2, 2]
    with pytest.raises(ValueError, match=r"prompt_lookup_min is 3, more than prompt_lookup_max \(2\)"):
        NgramArguments(prompt_lookup_max=2, prompt_lookup_min=3)
    with pytest.raises(msgspec.ValidationError, match="prompt_lookup_max"):
        msgspec.convert({"prompt_lookup_max": 0}, NgramArguments)


def test_manifest_imports_no_torch():
    run_torch_free("import core_speculative.ngram.manifest as m; m.core_spec()")
