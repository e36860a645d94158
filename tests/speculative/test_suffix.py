"""The suffix proposer against counting all places by hand; its earlier answers, and whose they are."""

import random

import msgspec
import pytest

from core.plugin.hookspecs import LoadContext
from core_runtime.contracts import KnowsRequests, Proposer, ProposerInput, RequestFacts
from core_speculative.suffix import manifest, text_index
from core_speculative.suffix.arguments import SuffixArguments
from core_speculative.suffix.proposer import context_lengths, most_drafts
from tests.torch_free import run_torch_free

PHRASE = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def proposer(**arguments):
    named = {f"suffix_decoding_{name}": value for name, value in arguments.items()}
    return manifest.core_load(LoadContext(arguments=SuffixArguments(**named)))


def drafts(made, name, tokens, budget=8, facts=None):
    """A sequence's first drafts."""
    key = (name, 0)
    if facts is not None:
        made.on_request(key, facts)
    made.on_start(key, tokens[:-1])
    return made.propose(ProposerInput([key], [tokens[-1:]], [budget]))[0]


def answer(made, name, tokens, facts=None):
    """A whole sequence whose answer is `tokens`."""
    key = (name, 0)
    if facts is not None:
        made.on_request(key, facts)
    made.on_start(key, [1])
    made.propose(ProposerInput([key], [tokens], [0]))
    made.on_finished(key)
    made.propose(ProposerInput([], [], []))


def learn(made):
    """Give the proposer the time of some steps."""
    answer(made, "long", list(range(5000, 5200)))


def by_hand(tokens, budget, lengths, most, least):
    """The most frequent continuation of the longest known context, token by token."""
    for length in reversed(lengths):
        context = tokens[-length:]
        places = [p for p in range(len(tokens) - 1, length - 1, -1) if tokens[p - length : p] == context]
        if len(tokens) < length or not places:
            continue
        rows = []
        for place in places:
            text = list(tokens)
            for i in range(budget):
                text.append(text[place + i])
            rows.append(text[len(tokens) :])
        found = []
        for i in range(min(budget, most[length])):
            options = [row[i] for row in rows]
            token = max(options, key=options.count)
            rows = [row for row in rows if row[i] == token]
            if len(rows) / len(places) < least:
                break
            found.append(token)
        return found
    return []


@pytest.mark.parametrize("least", [0.0, 0.1, 0.5, 1.0])
def test_drafts_equal_counting_all_places_by_hand(monkeypatch, least):
    monkeypatch.setattr(text_index, "MOST_PLACES", 1000)
    arguments = SuffixArguments()
    lengths, most = context_lengths(arguments), most_drafts(arguments)
    rng = random.Random(int(least * 10))
    num_drafts = 0
    for _ in range(200):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(2, 60))]
        budget = rng.randrange(1, 9)
        found = drafts(proposer(min_token_prob=least), "a", tokens, budget)
        assert found == by_hand(tokens, budget, lengths, most, least)
        num_drafts += len(found)
    assert num_drafts > 100


def test_longer_known_words_give_longer_drafts_up_to_the_depth():
    text = [*range(100, 130), 7, 8]
    for length, expected in ((1, 0), (2, 2), (3, 2), (4, 4), (8, 8), (11, 8), (12, 12), (20, 12)):
        found = drafts(proposer(), "a", [*text, *text[:length]], 30)
        assert found == text[length : length + expected]
    assert drafts(proposer(max_spec_factor=3), "a", [*text, *text[:2]], 30) == text[2:8]
    assert drafts(proposer(max_spec_factor=0), "a", [*text, *text[:12]], 30) == []
    assert drafts(proposer(max_tree_depth=6), "a", [*text, *text[:12]], 30) == text[12:15]
    assert drafts(proposer(max_tree_depth=1), "a", [*text, *text[:12]], 30) == []


def test_a_loop_is_proposed_whole():
    assert drafts(proposer(), "a", [5, 6] * 3, 5) == [5, 6, 5, 6]
    assert drafts(proposer(), "a", [5, 6] * 8, 9) == [5, 6, 5, 6, 5, 6, 5, 6, 5]


def test_earlier_answers_of_the_same_tenant_are_drafted():
    made = proposer()
    anna, boris = RequestFacts("anna", None), RequestFacts("boris", None)
    answer(made, "first", PHRASE, anna)
    learn(made)
    wanted = [900, *PHRASE[:4]]
    assert drafts(made, "same", wanted, 4, anna) == PHRASE[4:8]
    assert drafts(made, "salted", wanted, 4, RequestFacts("anna", "salt")) == []
    assert drafts(made, "other", wanted, 4, boris) == []
    assert drafts(made, "nobody", wanted, 4) == []


def test_prompts_are_no_answers_and_tokens_from_before_a_preemption_count_once():
    made = proposer()
    key = ("a", 0)
    made.on_start(key, PHRASE)
    made.propose(ProposerInput([key], [[40, 41, 42, 43, 44, 45]], [0]))
    made.on_finished(key)
    made.on_start(key, [*PHRASE, 40, 41, 42, 43, 44, 45])
    made.on_finished(key)
    learn(made)
    assert drafts(made, "b", PHRASE[:4], 4) == []
    assert drafts(made, "c", [40, 41, 42, 43], 4) == [44, 45]


def test_old_answers_are_forgotten_and_none_are_kept_where_none_are_wanted():
    for limits in ({"max_cached_requests": 4}, {"max_cached_tokens": 1000}):
        made = proposer(**limits)
        answer(made, "first", PHRASE)
        learn(made)
        assert drafts(made, "early", PHRASE[:4], 4) == PHRASE[4:8]
        for number in range(10):
            answer(made, "more", list(range(1000 * number, 1000 * number + 400)))
        learn(made)
        assert drafts(made, "late", PHRASE[:4], 4) == []
    for limits in ({"max_cached_requests": 0}, {"max_cached_tokens": 0}):
        made = proposer(**limits)
        answer(made, "first", PHRASE)
        learn(made)
        assert drafts(made, "a", PHRASE[:4], 4) == []


def test_memory_of_answers_has_a_limit_while_nothing_is_learned():
    answers = proposer(max_cached_tokens=1000).answers
    for number in range(50):
        answers.add("owner", list(range(number, number + 300)))
    assert answers.num_waiting <= 1000
    answers.learn(10**6)
    assert answers.num_waiting == 0


def test_arguments():
    assert isinstance(manifest.core_load(LoadContext()), Proposer)
    assert isinstance(manifest.core_load(LoadContext()), KnowsRequests)
    for name, value in (("max_tree_depth", 0), ("max_spec_factor", -1.0), ("min_token_prob", 1.5)):
        with pytest.raises(msgspec.ValidationError, match=name):
            msgspec.convert({f"suffix_decoding_{name}": value}, SuffixArguments)


def test_manifest_imports_no_torch():
    run_torch_free("import core_speculative.suffix.manifest as m; m.core_spec()")
