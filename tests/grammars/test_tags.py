"""Structural tags as llguidance reads them. The oracle is xgrammar's own matcher over the same tag and vocabulary."""

import json
import random
import re

import numpy as np
import pytest

from core.api.errors import RequestError
from core.api.structured_outputs import GrammarSpec
from core_formats.constraint import constraint
from core_grammars.contract import GrammarVocabulary
from tests.response_formats.answers import TOOLS
from tests.response_formats.test_constraint import ROWS, THREE, written

STOP = 256
WORDS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|call|>", "<|channel|>", "<|message|>", "<|start|>"]
WORDS += ["<|constrain|>", "<|end|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"]
WORDS += ["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"]
IDS = {word: STOP + 1 + number for number, word in enumerate(WORDS)}
PIECES = [b'{"', b'":', b'": "', b", ", b"</", b"\n</", b"}\n", b"}}", b"ab", b"true", b"]\n"]


def vocabulary(specials):
    """All bytes, the end of an answer, special tokens, and pieces of text."""
    tokens = [bytes([byte]) for byte in range(STOP)]
    tokens += [b""] * (1 + len(WORDS))
    named = {STOP: "</s>", **{index: word for word, index in IDS.items() if specials}}
    return GrammarVocabulary(tokens + PIECES, named, [STOP], "of the test")


@pytest.fixture(scope="module")
def backends():
    """By whether there are special tokens: llguidance's and xgrammar's."""
    pytest.importorskip("xgrammar")
    pytest.importorskip("llguidance")
    from core_grammars.llguidance.backend import LlguidanceBackend
    from core_grammars.xgrammar.backend import XgrammarBackend

    kinds = (LlguidanceBackend, XgrammarBackend)
    return {specials: [kind(vocabulary(specials)) for kind in kinds] for specials in (False, True)}


def tag(**format_):
    return GrammarSpec("structural_tag", json.dumps({"type": "structural_tag", "format": format_}))


def tokens_of(text, specials):
    """The text in bytes, its special tokens as such."""
    found = []
    while text:
        word = next((word for word in WORDS if specials and text.startswith(word)), None)
        found += [IDS[word]] if word else text[0].encode()
        text = text[len(word or text[0]) :]
    return found


def allowed(matcher):
    words = np.zeros((STOP + 1 + len(WORDS) + len(PIECES) + 31) // 32, np.int32)
    if not matcher.fill(words):
        words.fill(-1)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[: STOP + 1 + len(WORDS) + len(PIECES)]).tolist()


def accepts(backend, data, tokens):
    """Whether the masks let all of it come, and the end."""
    matcher = backend.matcher(data)
    for token in [*tokens, STOP]:
        if token not in allowed(matcher):
            return False
        assert matcher.accept(token)
    return matcher.is_terminated


def walk(backend, data, source, longest=60):
    """A random answer under the masks, as tokens, and whether it ended."""
    matcher = backend.matcher(data)
    found = []
    for _ in range(longest):
        choices = allowed(matcher)
        assert choices, found
        rare = [token for token in choices if token > STOP]
        plain = [token for token in choices if 32 <= token < 127]
        if STOP in choices and source.random() < 0.3:
            return found, True
        pool = rare if rare and source.random() < 0.5 else plain if plain and source.random() < 0.97 else choices
        token = source.choice(pool)
        if token == STOP:
            return found, True
        assert matcher.accept(token)
        found.append(token)
    return found, False


def follows(backend, data, tokens, ended):
    """Whether an answer of another backend may come here, as far as it went."""
    matcher = backend.matcher(data)
    taken = all(matcher.accept(token) for token in tokens)
    return taken and (not ended or matcher.accept(STOP))


def constraints(row, specials):
    """What requests with tools ask of a row, and the thoughts that answers may begin with."""
    more = {"special_tokens": WORDS if specials else (), "stops": ["</s>"]}
    yield constraint(row, TOOLS, "required", **more), [""]
    yield constraint(row, TOOLS, "required", parallel=False, **more), [""]
    yield constraint(row, TOOLS, "now", **more), [""]
    yield constraint(row, TOOLS, "auto", **more), [""]
    answer = GrammarSpec("json_schema", json.dumps(TOOLS[0].parameters))
    yield constraint(row, TOOLS, "auto", answer=answer, **more), [""]
    if row.reasoning:
        open_, close = row.reasoning.open[0], row.reasoning.close[0]
        thoughts = ["", f"{open_}Hm < {{{close}"]
        yield constraint(row, TOOLS, "required", reasoning=True, **more), thoughts
        yield constraint(row, TOOLS, "auto", reasoning=True, **more), thoughts
        begun = [f"Hm < {{{close}", f"{open_}Hm{close}\n"]
        yield constraint(row, TOOLS, "required", reasoning=True, prompt_tail=open_, **more), begun


QUICK = ("hermes", "kimi_k2", "openai", "llama3_json")
SLICE = [
    pytest.param(number, row, id=row.name, marks=[] if row.name in QUICK else [pytest.mark.slow])
    for number, row in enumerate(ROWS)
]


@pytest.mark.parametrize(("number", "row"), SLICE)
def test_answers_of_every_row(backends, number, row):
    """Every second row with special tokens."""
    specials = number % 2 == 0
    llguidance, xgrammar = backends[specials]
    turns = ["It is warm.", "Hm. " + written(row, THREE), *(written(row, THREE[:many]) for many in (1, 3))]
    turns += [written(row, [("now", {})]), written(row, [("get_weather", {"city": "Rome", "days": "x"})])]
    source = random.Random(row.name)
    for spec, thoughts in constraints(row, specials):
        data, oracle = llguidance.compile(spec), xgrammar.compile(spec)
        for turn in [thought + turn for thought in thoughts for turn in turns]:
            tokens = tokens_of(turn, specials)
            assert accepts(llguidance, data, tokens) == accepts(xgrammar, oracle, tokens), (turn, spec.text)
        for _ in range(4):
            answer = walk(llguidance, data, source)
            if b"-0" in shown(answer[0]):
                continue  # an integer, which xgrammar does not let come
            assert follows(xgrammar, oracle, *answer), (shown(answer[0]), spec.text)


def shown(tokens):
    """Tokens as text."""
    known = vocabulary(True)
    return b"".join(known.specials.get(token, "").encode() or known.tokens[token] for token in tokens)


ANY = {"type": "any_text"}
OBJECT = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": {"type": "boolean"}}}}
OBJECT["json_schema"]["additionalProperties"] = False
A = {"type": "tag", "begin": "<a>", "content": OBJECT, "end": "</a>"}
B = {"type": "tag", "begin": "<b>", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": ["</b>", "</c>"]}
NOTE = {"type": "tag", "begin": "<n>", "content": ANY, "end": "</n>"}
TEXTS = ["", "x", "<a>", '<a>{"a": true}</a>', "<b>12</b>", "<b>12</c>", "<b>x</b>", "<n>so <b</n>", "<n>so</n>x"]
TEXTS += [
    '<a>{"a": true}</a>, <b>7</b>',
    'so <a>{"a": true}</a> and <b>7</c> on',
    "so <a>x</a>",
    '<a>{"a":true}</a><b>7</b>',
    "aab",
]
TEXTS += [
    "abab",
    "12-",
    "1x-",
    "<think>hm</think>7",
    "hm</think>7",
    "</think>7",
    "hmm</think>7",
    "hmm</think>x",
    "no",
    "yes",
]
FORMATS = {
    "tags and text": {"type": "triggered_tags", "triggers": ["<a>", "<b>"], "tags": [A, B]},
    "a tag at least": {"type": "triggered_tags", "triggers": ["<a>", "<b>"], "tags": [A, B], "at_least_one": True},
    "one tag at most": {"type": "triggered_tags", "triggers": ["<a>"], "tags": [A], "stop_after_first": True},
    "separated": {"type": "tags_with_separator", "tags": [A, B], "separator": ", "},
    "separated, one at least": {"type": "tags_with_separator", "tags": [A, B], "separator": ", ", "at_least_one": True},
    "free content": {"type": "or", "elements": [NOTE, B]},
    "a part again": {"type": "plus", "content": {"type": "const_string", "value": "ab"}},
    "a part twice": {"type": "repeat", "min": 2, "max": 2, "content": {"type": "const_string", "value": "ab"}},
    "an expression before text": {
        "type": "sequence",
        "elements": [{"type": "regex", "pattern": "[0-9]+"}, {"type": "const_string", "value": "-"}],
    },
    "a grammar": {"type": "grammar", "grammar": 'root ::= "a"+ "b"'},
    "two tokens of thought": {
        "type": "sequence",
        "elements": [
            {"type": "any_text", "max_tokens": 2},
            {"type": "const_string", "value": "</think>"},
            {"type": "regex", "pattern": "[0-9]"},
        ],
    },
    "tokens": {
        "type": "sequence",
        "elements": [
            {"type": "any_tokens", "exclude_tokens": [IDS["</think>"]], "max_tokens": 3},
            {"type": "token", "token": IDS["</think>"]},
            {"type": "exclude_token", "exclude_tokens": [120]},
        ],
    },
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(backends, name):
    # xgrammar lets special tokens come in free text that excludes something, so there are none but where they are named.
    specials = "token" in name
    llguidance, xgrammar = backends[specials]
    spec = tag(**FORMATS[name])
    data, oracle = llguidance.compile(spec), xgrammar.compile(spec)
    taken = []
    for text in TEXTS:
        tokens = tokens_of(text, specials)
        taken.append(accepts(llguidance, data, tokens))
        assert taken[-1] == accepts(xgrammar, oracle, tokens), text
    assert any(taken) and not all(taken)
    source = random.Random(name)
    for _ in range(20):
        answer = walk(llguidance, data, source)
        assert follows(xgrammar, oracle, *answer), shown(answer[0])
        other = walk(xgrammar, oracle, source)
        try:
            shown(other[0]).decode()
        except UnicodeDecodeError:
            continue  # a part of a character, which only one of them lets come in free text
        assert follows(llguidance, data, *other), shown(other[0])


@pytest.mark.parametrize("excluded", [[], [120]])
def test_the_end_of_an_answer_is_no_token_of_it(backends, excluded):
    """A token that may be any but some has to come before the answer may end."""
    for backend in backends[True]:
        data = backend.compile(tag(type="exclude_token", exclude_tokens=excluded))
        assert STOP not in allowed(backend.matcher(data))
        assert accepts(backend, data, [97])


@pytest.mark.parametrize("most", [1, 5, 40, 5000])
def test_a_limit_of_reasoning_ends_it(backends, most):
    """Behind that many tokens nothing but the marker may come, and drafts can be taken back over it."""
    llguidance, _ = backends[True]
    row = next(row for row in ROWS if row.name == "hermes")
    more = {"reasoning": True, "prompt_tail": "<think>", "special_tokens": WORDS, "stops": ["</s>"]}
    spec = constraint(row, TOOLS, "required", max_reasoning=most, **more)
    matcher = llguidance.matcher(llguidance.compile(spec))
    for _ in range(most):
        assert matcher.accept(ord("h"))
    assert allowed(matcher) == [IDS["</think>"]]
    matcher.rollback(1)
    assert ord("h") in allowed(matcher)


@pytest.mark.parametrize(
    ("format_", "said"),
    [
        ({"type": "dispatch", "rules": []}, "'dispatch'"),
        ({"type": "json_schema", "json_schema": {}, "any_order": True}, "'any_order'"),
        ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, "'qwen_xml'"),
        ({"type": "token", "token": "</s>"}, "ends the answer"),
        ({"type": "token", "token": 10**6}, "which is none"),
        ({"type": "any_text", "max_tokens": 3, "excludes": ["x"]}, "limit of tokens"),
        ({"type": "sequence", "elements": [ANY, {"type": "const_string", "value": "x"}]}, "'x'"),
        ({"type": "or", "elements": [ANY, OBJECT]}, "begins at the same place"),
        ({"type": "star", "content": ANY}, "repeated part"),
        ({"type": "sequence", "elements": [{"type": "any_tokens"}, {"type": "token", "token": 99}]}, "is not seen"),
        ({"type": "or"}, "not well formed"),
        ({"type": "const_string", "value": 1}, "not well formed"),
        ({"elements": []}, "no object with a type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_said_is_refused_by_name(backends, format_, said):
    with pytest.raises(RequestError, match=re.escape(said)):
        backends[True][0].compile(tag(**format_))


def test_many_expressions_behind_each_other_are_written_once(backends):
    value = [
        {"type": "regex", "pattern": "[a-z]+"},
        {"type": "optional", "content": {"type": "const_string", "value": ";"}},
    ]
    elements = [*value, {"type": "const_string", "value": "."}] * 40
    data = backends[False][0].compile(tag(type="sequence", elements=elements))
    assert accepts(backends[False][0], data, list(b"ab;.c." * 20)) and len(data) < 5000


def test_lark_grammars_stand_behind_reasoning(backends):
    llguidance, xgrammar = backends[False]
    answer = GrammarSpec("lark", 'start: "a" b+\nb: /[0-9]/ "}"\n%ignore / /')
    spec = constraint(next(row for row in ROWS if row.name == "hermes"), [], "auto", reasoning=True, answer=answer)
    data = llguidance.compile(spec)
    assert accepts(llguidance, data, list(b"<think>a</think>a1}2 }"))
    assert accepts(llguidance, data, list(b"a 1}"))
    assert not accepts(llguidance, data, list(b"a1"))
    with pytest.raises(RequestError):
        xgrammar.compile(spec)
