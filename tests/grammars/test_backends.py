"""Answers that a backend lets through follow the grammar. Oracles: `re`, `json`, `jsonschema`."""

import json
import random
import re

import jsonschema
import msgspec
import numpy as np
import pytest

from core.api.structured_outputs import GrammarSpec
from core_kit import cases
from core_kit.fixtures.grammar_vocabulary import STOP, vocabulary
from tests.grammars.libraries import reasons

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 3, "maximum": 120},
        "kind": {"enum": ["yes", "no", 5, None]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind"],
}
CHOICES = ["yes", "no", 'so "so"\n', "ja, natürlich", "\\d[a]"]


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def backend(request):
    pytest.importorskip(request.param)
    if request.param == "xgrammar":
        from core_grammars.xgrammar.backend import XgrammarBackend as Backend
    else:
        from core_grammars.llguidance.backend import LlguidanceBackend as Backend
    return Backend(vocabulary())


def answers(backend, spec, count, longest=200):
    """Random walks through the masks that end with a stop token; short ones are likely since the end is preferred."""
    tokens = vocabulary().tokens
    data = backend.compile(spec)
    source = random.Random(7)
    words = np.zeros((len(tokens) + 31) // 32, np.int32)
    for _ in range(count):
        matcher = backend.matcher(data)
        text = b""
        for _ in range(longest):
            assert matcher.fill(words)
            bits = np.unpackbits(words.view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[: len(tokens)]).tolist()
            assert allowed, text
            token = (
                STOP if STOP in allowed and source.random() < 0.5 else source.choice(_likely(allowed, tokens, source))
            )
            assert matcher.accept(token)
            if token == STOP:
                assert matcher.is_terminated
                yield text.decode()
                break
            text += tokens[token]


def _likely(allowed, tokens, source):
    """Mostly letters, digits and signs: random bytes would make characters outside of everything."""
    plain = [token for token in allowed if tokens[token][:1] in b'{}[]",:\\abcdefghijklmnopqrstuvwxyz0123456789']
    return plain if plain and source.random() < 0.97 else allowed


@pytest.mark.parametrize("regex", [r"[0-9]{3}-[a-c]+", r"(ab|c)*d?", r"x{2,4}|y"])
def test_regular_expressions(backend, regex):
    found = list(answers(backend, GrammarSpec("regex", regex), 30))
    assert len(found) > 20
    assert all(re.fullmatch(regex, text) for text in found)


def test_choices(backend):
    found = set(answers(backend, GrammarSpec("choice", json.dumps(CHOICES)), 60))
    assert found == set(CHOICES)


@pytest.mark.parametrize("free", [True, False])
def test_schemas(backend, free):
    spec = GrammarSpec("json_schema", json.dumps(SCHEMA), any_whitespace=free, additional_properties=False)
    found = list(answers(backend, spec, 40))
    assert len(found) > 10
    for text in found:
        value = json.loads(text)
        jsonschema.validate(value, SCHEMA)
        assert value.keys() <= SCHEMA["properties"].keys()
        if not free:
            assert text == json.dumps(value, separators=(",", ":"), ensure_ascii=False) or "\\" in text


def test_keys_have_one_spelling(backend):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    for spec, before, after in ((GrammarSpec("json_schema", json.dumps(schema)), "", ""), *in_tags(backend, schema)):
        data = backend.compile(spec)
        assert accepts(backend, data, before + '{"a": 1, "b": "\\n"}' + after)
        assert not accepts(backend, data, before + '{"a": 1, "\\u0061": "x"}' + after)


def test_settings_hold_inside_of_tags(backend):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for spec, before, after in in_tags(backend, schema):
        tight = msgspec.structs.replace(spec, any_whitespace=False, additional_properties=False)
        data = backend.compile(tight)
        assert accepts(backend, data, before + '{"a":1}' + after)
        assert not accepts(backend, data, before + '{"a": 1}' + after)
        assert not accepts(backend, data, before + '{"a":1,"b":2}' + after)
        assert accepts(backend, backend.compile(spec), before + '{"a": 1}' + after)


def in_tags(backend, schema):
    """The schema inside a structural tag, with what stands before and behind it, where the backend has tags."""
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}}
    spec = GrammarSpec("structural_tag", json.dumps(tag))
    name = type(backend).__module__.split(".")[1]
    return [] if reasons(name, spec) else [(spec, "<a>", "</a>")]


def accepts(backend, data, text):
    matcher = backend.matcher(data)
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(STOP)


def test_any_object(backend):
    found = [json.loads(text) for text in answers(backend, GrammarSpec("json_object"), 40)]
    assert len(found) > 10 and all(isinstance(value, dict) for value in found)


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("ebnf", 'root ::= "a" part+\npart ::= "b" | [c-e] "\\n"'),
        GrammarSpec("lark", 'start: "a" part+\npart: "b" | /[c-e]/ "\\n"'),
    ],
    ids=["ebnf", "lark"],
)
def test_grammars(backend, spec):
    found = list(answers(backend, spec, 30))
    assert found and all(re.fullmatch("a(b|[c-e]\n)+", text) for text in found)


def test_forced_text_is_what_every_answer_goes_on_with(backend):
    spec = GrammarSpec("json_schema", '{"const": {"name": "abc"}}', any_whitespace=False)
    matcher = backend.matcher(backend.compile(spec))
    text = ""
    while forced := matcher.forced():
        text += forced
        assert all(matcher.accept(byte) for byte in forced.encode())
    assert text == '{"name":"abc"}'


def test_without_tokens_that_end_an_answer(backend):
    """The mask is empty where there is nothing but the end."""
    without = type(backend)(msgspec.structs.replace(vocabulary(), stop_ids=[]))
    matcher = without.matcher(without.compile(GrammarSpec("regex", "ab")))
    words = np.zeros((len(vocabulary().tokens) + 31) // 32, np.int32)
    for byte in b"ab":
        assert matcher.fill(words) and words.any()
        assert matcher.accept(byte)
    assert matcher.fill(words) and not words.any()


@pytest.mark.parametrize("name", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("number", range(10, len(cases("grammar", "xgrammar"))))
def test_conformance(name, number):
    pytest.importorskip(name)
    cases("grammar", name)[number]()


def test_limits_of_tokens_hold_whichever_way_tokens_come():
    pytest.importorskip("xgrammar")
    from core_grammars.xgrammar.backend import XgrammarBackend

    thoughts = {"type": "any_text", "excludes": ["</t>"], "max_tokens": 3}
    parts = [thoughts, {"type": "const_string", "value": "</t>yes"}]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": parts}}
    backend = XgrammarBackend(vocabulary())
    matcher = backend.matcher(backend.compile(GrammarSpec("structural_tag", json.dumps(tag))))
    tokens = vocabulary().tokens
    letter, end = tokens.index(b"a"), tokens.index(b"<")
    assert [matcher.accept(letter) for _ in range(4)] == [True, True, True, False]
    matcher.rollback(1)
    assert matcher.accept(letter) and not matcher.accept(letter)
    assert matcher.accept(end)
