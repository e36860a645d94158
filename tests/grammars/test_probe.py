"""What is too much work is refused when it is compiled: limits of backends, masks that take longer with each token."""

import json
import time

import numpy as np
import pytest

from core.api.errors import RequestError
from core.api.structured_outputs import GrammarSpec
from core_grammars.ambiguous import ambiguous_rule
from core_grammars.contract import GrammarVocabulary
from core_grammars.keywords import unhonoured_grammar
from core_grammars.probe import SINGLE_S, STEPS, TRIAL_S, Probe
from core_kit.fixtures.grammar_vocabulary import STOP, vocabulary
from tests.grammars.libraries import NAMES, of_bytes, reasons, spec_of

DEEP = 'root ::= "a" s\ns ::= (s s) | (s s s) | [a-z] | ""'
SYLLABLES = [(first + second).encode() * 4 for first in "abcdefghij" for second in "abcdefghij"]


class Counting:
    """A backend whose masks take longer with each token. seconds: of the mask behind so many tokens."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.worked = 0.0
        self.matchers = []

    def matcher(self, data):
        self.matchers.append(Counted(self))
        return self.matchers[-1]


class Counted:
    is_terminated = False

    def __init__(self, backend):
        self.backend = backend
        self.taken = []

    def fill(self, words):
        self.backend.worked += self.backend.seconds(len(self.taken))
        return False

    def accept(self, token):
        self.taken.append(token)
        return True


def tried(seconds):
    backend = Counting(seconds)
    Probe(vocabulary(), lambda: backend.worked).run(backend, b"")
    return backend


def test_answers_are_tried_out_token_by_token():
    backend = tried(lambda count: TRIAL_S / 100)
    assert [len(one.taken) for one in backend.matchers] == [STEPS - 1] * 2
    tokens = vocabulary().tokens
    longest, drawn = ([len(tokens[token]) for token in one.taken] for one in backend.matchers)
    assert set(longest) == {max(map(len, tokens))} and len(set(drawn)) > 1
    assert all(token != STOP for one in backend.matchers for token in one.taken)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (lambda count: SINGLE_S * 1.5 if count == 20 else 0.0, "75 ms of processor time behind 20 tokens"),
        (lambda count: TRIAL_S / STEPS, "the masks of 32 tokens take more than 0.6 s"),
    ],
)
def test_masks_that_take_too_long_are_refused(seconds, words):
    with pytest.raises(RequestError, match=words):
        tried(seconds)


@pytest.mark.parametrize("name", NAMES)
def test_real_backends_are_tried_out_in_a_few_milliseconds_of_work(name):
    backend = of_bytes(name)
    for spec in (GrammarSpec("json_object"), GrammarSpec("regex", "[a-z]{0,5}"), spec_of({"const": "a"})):
        Probe(vocabulary()).run(backend, backend.compile(spec))


@pytest.mark.parametrize("name", NAMES)
def test_an_ambiguous_grammar_ends_at_a_limit(name):
    base = vocabulary()
    words = GrammarVocabulary(base.tokens + SYLLABLES, base.specials, base.stop_ids, "more")
    backend = of_bytes(name).__class__(words)
    with pytest.raises(RequestError, match=r"a mask takes|the masks of|llguidance says"):
        Probe(words, fast_clock).run(backend, backend.compile(GrammarSpec("ebnf", DEEP)))


def fast_clock():
    """Fifty times as fast as the work is, so that it takes a moment."""
    return 50 * time.thread_time()


def test_a_limit_of_llguidance_is_met_when_a_grammar_is_tried_out():
    backend = of_bytes("llguidance")
    branches = [{"type": "object", "properties": {f"p{n}_{m}": {} for m in range(450)}} for n in range(2)]
    schema = {"type": "array", "items": {"anyOf": [{**one, "additionalProperties": False} for one in branches]}}
    data = backend.compile(spec_of(schema))
    with pytest.raises(RequestError, match=r"llguidance says: .*items.* 2000"):
        Probe(vocabulary()).run(backend, data)
    matcher = backend.matcher(data)
    words = np.zeros((len(vocabulary().tokens) + 31) // 32, np.int32)
    for _ in range(2):  # it stays so
        with pytest.raises(RequestError, match="llguidance says"):
            for token in b'[{"p1_4':
                matcher.fill(words)
                assert matcher.accept(token)


@pytest.mark.parametrize("name", NAMES)
def test_more_optional_properties_than_a_backend_takes_are_refused_before_it_begins(name):
    names = [f"p{number}" for number in range(500)]
    schema = {"type": "object", "properties": {key: {} for key in names}, "additionalProperties": False}
    (reason,) = reasons(name, spec_of(schema))
    assert "optional entries of `properties`" in str(reason) and "500" in str(reason)
    assert not reasons(name, spec_of({**schema, "required": names}))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('root ::= s\ns ::= s s | "a"', "s ::= s s"),
        ('root ::= s\ns ::= "a" | s s s # as often as you like\nt ::= "b"', "s ::= s s s"),
        ("s ::= s", "s ::= s"),
        (DEEP, "s ::= s s"),
        ('s ::= "a" | (s) s+', "s ::= s s"),
        ('s: (s s)?\n?t: "b"', "s ::= s s"),
        ('s ::= (s | "a") "b"', ""),
        ('s ::= (s ("b"))*', ""),
        ('start: s\n?s: "a"\n  | s s\n', "s ::= s s"),
        ("s ::= t s | t\nt ::= [a-z]+", ""),
        ('s ::= "s s | s" s', ""),
        ("s ::= [|] s | 's'", ""),
        ("root ::= ws ws\nws ::= [ ]*", ""),
        ('a ::= "(" a ")" | b a | b\nb ::= "x"', ""),
    ],
)
def test_rules_with_endlessly_many_readings_are_named(text, rule):
    assert ambiguous_rule(text) == rule
    found = unhonoured_grammar(text)
    assert bool(found) == bool(rule) and (not rule or rule in str(found[0]))
    assert json.dumps(str(found))
