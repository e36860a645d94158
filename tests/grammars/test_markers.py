"""In structural tags the text of a special token means the token."""

import json

import pytest

from core.api.structured_outputs import GrammarSpec
from core_kit.fixtures.grammar_vocabulary import STOP, vocabulary

SPECIAL = 257
ANY = {"type": "any_text", "excludes": ["<special>"]}
TAG = {"type": "tag", "begin": "<special>a:", "content": {"type": "regex", "pattern": "[0-9]"}, "end": "<special>"}


@pytest.fixture(scope="module")
def backend():
    pytest.importorskip("xgrammar")
    from core_grammars.xgrammar.backend import XgrammarBackend

    return XgrammarBackend(vocabulary())


def accepts(backend, format_, *parts):
    """Whether texts and tokens in a row are an answer."""
    text = json.dumps({"type": "structural_tag", "format": format_})
    matcher = backend.matcher(backend.compile(GrammarSpec("structural_tag", text)))
    for part in parts:
        tokens = part.encode() if isinstance(part, str) else [part]
        if not all(matcher.accept(token) for token in tokens):
            return False
    return matcher.accept(STOP)


def test_texts(backend):
    const = {"type": "const_string", "value": "a<special>b"}
    assert accepts(backend, const, "a", SPECIAL, "b")
    assert not accepts(backend, const, "a<special>b")
    thinking = {"type": "sequence", "elements": [ANY, {"type": "const_string", "value": "<special>x"}]}
    assert accepts(backend, thinking, "hm <b> ", SPECIAL, "x")
    assert not accepts(backend, thinking, "hm ", SPECIAL, "y")
    assert not accepts(backend, {"type": "any_text"}, "a", SPECIAL)
    assert not accepts(backend, {"type": "regex", "pattern": "[^a]*"}, SPECIAL)


def test_tokens_by_their_text(backend):
    named = {"type": "token", "token": "<special>"}
    assert accepts(backend, named, SPECIAL) and not accepts(backend, named, "<special>")
    kept_out = {"type": "any_tokens", "exclude_tokens": ["<special>"]}
    assert accepts(backend, kept_out, "ab") and not accepts(backend, kept_out, SPECIAL)
    held = {"type": "sequence", "elements": [{"type": "any_text", "excludes": ["\n<special>"]}, named]}
    assert accepts(backend, held, "a\n", SPECIAL)


def test_triggers(backend):
    tags = {"type": "triggered_tags", "triggers": ["<special>"], "tags": [TAG]}
    assert accepts(backend, tags, "text ", SPECIAL, "a:5", SPECIAL, " more")
    assert accepts(backend, tags, "text")
    assert not accepts(backend, tags, "text ", SPECIAL, "b:5", SPECIAL)
    plain = {**tags, "triggers": ["<t>"], "tags": [{**TAG, "begin": "<t>", "end": "</t>"}]}
    assert accepts(backend, plain, "text <t>7</t>") and not accepts(backend, plain, "text <t>x</t>")
