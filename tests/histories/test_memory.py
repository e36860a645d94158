"""The memory of conversations: its bounds, and who hears of it."""

import asyncio

import pytest

from core_apis.histories.memory import Histories, Owner
from core_apis.histories.trace import CHUNK, DIGEST_BYTES, History, history_of, text_digests
from core_frontend.api.explanation import Miss
from core_tokens.chat.chat_template import ChatTemplate
from tests.apis.fake_engine import TEMPLATE, make_tokenizer

TOKENIZER = make_tokenizer()
RENDER = ChatTemplate(TEMPLATE)
MINE, THEIRS = Owner("a", None, ""), Owner("b", None, "")


def chat(*texts):
    """A conversation: its text and its history."""
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    text = RENDER.render(messages)
    return text, history_of(text, messages)


def told(memory, owner, text, history, differs_at):
    """The miss of a request that the engine found to differ at a token."""
    miss = Miss(0, 0, "", "", "history_changed", differs_at)
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    asyncio.run(memory.explain(owner, history, text, miss, ids, TOKENIZER))
    return miss


def place(one, other):
    """The first token that differs."""
    pairs = zip(*(TOKENIZER.encode(text, add_special_tokens=False) for text in (one, other)), strict=False)
    return next(index for index, (a, b) in enumerate(pairs) if a != b)


def test_only_the_owner_hears_of_a_conversation():
    memory = Histories()
    first, history = chat("Where does it rain?", "In Paris.", "And now?")
    memory.remember(MINE, history, first, "Still there.")
    text, changed = chat("Where does it rain?", "In Lyons.", "And now?")
    mine = told(memory, MINE, text, changed, place(first, text))
    assert (mine.change.message, mine.change.character) == (1, 3)
    assert told(memory, THEIRS, text, changed, place(first, text)).change is None
    assert told(memory, Owner("a", "salt", ""), text, changed, place(first, text)).change is None
    assert told(memory, Owner("a", None, "user"), text, changed, place(first, text)).change is None


def test_the_oldest_conversations_are_dropped_within_the_limit():
    memory = Histories(max_bytes=20_000)
    texts = [chat(f"Question number {number}?", "Yes.", "Why?") for number in range(100)]
    for text, history in texts:
        memory.remember(MINE if len(text) % 2 else THEIRS, history, text, "Because.")
        assert 0 < memory.num_bytes <= memory.max_bytes
    memory.remember(MINE, texts[0][1], texts[0][0], "x" * 100_000)  # larger than all of it
    assert memory.num_bytes <= memory.max_bytes
    owner = MINE if len(texts[-1][0]) % 2 else THEIRS
    text, history = chat("Question number 99?", "Yes!", "Why?")
    assert told(memory, owner, text, history, place(texts[-1][0], text)).change is not None
    text, history = chat("Question number 0?", "Yes!", "Why?")
    assert told(memory, MINE, text, history, 20).change is None or told(memory, MINE, text, history, 20).cause


def test_a_place_that_is_not_that_of_a_remembered_conversation_is_not_explained():
    memory = Histories()
    first, history = chat("A" * 300, "Yes.", "Why?")
    memory.remember(MINE, history, first, "Because.")
    text, changed = chat("A" * 100 + "B" * 200, "Yes.", "Why?")
    assert told(memory, MINE, text, changed, 280).change is None


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7])
def test_digests_of_a_text_that_goes_on_are_those_of_the_whole(length):
    text, answer = "é" * length, "ü" * (2 * CHUNK + 3)
    going_on = History(b"", text_digests(text), length).going_on(text, answer)
    assert going_on.digests == text_digests(text + answer)
    assert len(going_on.digests) == ((length + len(answer)) // CHUNK + 1) * DIGEST_BYTES


@pytest.mark.parametrize(
    "content", ["", " ", "user", "\ud800", "<|im_start|>", "a" * 100_000, [{"type": "text", "text": "a"}], None]
)
def test_any_content_has_a_trace(content):
    messages = [
        {"role": "user", "content": "user"},
        {"role": "assistant", "content": content},
        {"role": "x", "tool_calls": [1, {}]},
    ]
    text = "user" + (content if isinstance(content, str) else "a")
    trace = history_of(text, messages, [{"a": 1}], {"b": [1.5, None]}).trace
    assert all(-1 <= piece.start <= piece.end <= len(text) for piece in trace.pieces)


def test_messages_that_the_template_leaves_out_cost_no_quadratic_search():
    text = "x" * 1_000_000
    messages = [{"role": "user", "content": f"y{number}"} for number in range(10_000)]
    trace = history_of(text, messages).trace
    assert {piece.start for piece in trace.pieces} == {-1}
