"""Structural tags as llguidance reads them. The oracle is xgrammar's own matcher over the same tag and vocabulary."""

from __future__ import annotations

import json
import random

import msgspec
import numpy as np
import pytest
from formats.answers import TOOLS
from formats.test_constraint import ROWS, THREE, written

from core.api.errors import RequestError
from core.api.structured_outputs import GrammarSpec
from core.formats.constraint import constraint
from core.plugin.contracts.grammar import GrammarVocabulary

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
    from core_plugins.grammars.llguidance.backend import LlguidanceBackend
    from core_plugins.grammars.xgrammar.backend import XgrammarBackend

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
    more = {"special_ids": IDS if specials else {}, "stops": ["</s>"]}
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


@pytest.mark.parametrize("specials", [False, True])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_answers_of_every_row(backends, row, specials):
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
