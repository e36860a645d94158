"""Streams of tokens become whole characters, and together the text that decoding everything gives."""

import time

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from core_runtime.specs.checkpoint import TokenizerSource, Vocabulary
from core_tokens.detokenizer import IncrementalDetokenizer, MarkingDetokenizer
from core_tokens.tokenizer import Tokenizer
from tests.tokenizers.tokenizers_for_tests import ours

TEXTS = ["Hello, world", "naïve 😀👩‍👩‍👧 日本語 🧿🧿", "  spaces\n\n\n", "<|im_start|>x<|im_end|>", "\x00é"]


def pieces(tokenizer: Tokenizer, ids: list[int], **options: object) -> list[str]:
    stream = IncrementalDetokenizer(tokenizer, **options)
    return [*(stream.push([index]) for index in ids), stream.flush()]


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
@pytest.mark.parametrize("skip", [True, False])
def test_whole_characters_only(name: str, skip: bool) -> None:
    tokenizer = ours(name)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        parts = pieces(tokenizer, ids, skip_special_tokens=skip)
        assert "".join(parts) == tokenizer.decode(ids, skip)
        assert not any("\ufffd" in part for part in parts)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_ids_in_any_portions(data: st.DataObject, skip: bool) -> None:
    name, size = data.draw(st.sampled_from([("smollm2", 49152), ("gemma3", 1000)]))
    tokenizer = ours(name)
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=30))
    stream = IncrementalDetokenizer(tokenizer, [], skip)
    shown, position = "", 0
    while position < len(ids):
        count = data.draw(st.integers(1, 4))
        shown += stream.push(ids[position : position + count])
        position += count
    assert shown + stream.flush() == tokenizer.decode(ids, skip)


def test_a_character_begun_by_the_prompt_is_completed() -> None:
    tokenizer = ours("smollm2")
    ids = tokenizer.encode("see 🧿!")
    for cut in range(len(ids)):
        text = "".join(pieces(tokenizer, ids[cut:], prompt_token_ids=ids[:cut]))
        assert "\ufffd" not in text and "see 🧿!".endswith(text)


def test_an_unfinished_character_appears_at_the_end_only() -> None:
    tokenizer = ours("smollm2")
    begun = tokenizer.encode("🧿")[:-1]
    stream = IncrementalDetokenizer(tokenizer)
    assert stream.push(begun) == "" and stream.flush() == "\ufffd"


def test_the_first_space_belongs_to_the_tokenizer_only_at_the_start() -> None:
    vocabulary = Vocabulary(
        "spm", ["<unk>", "▁", "a", "▁a"], scores=[0, -3, -2, -1], types=[2, 1, 1, 1], add_space_prefix=True
    )
    tokenizer = Tokenizer.from_source(TokenizerSource(vocabulary=vocabulary))
    assert "".join(pieces(tokenizer, [3, 3])) == "a a" == tokenizer.decode([3, 3])
    assert "".join(pieces(tokenizer, [3, 3], prompt_token_ids=[3])) == " a a"


def test_decoders_whose_tokens_are_not_bytes() -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "now": 3}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    assert "".join(pieces(Tokenizer(backend), [1, 2, 3])) == "playing now" == Tokenizer(backend).decode([1, 2, 3])


def test_work_does_not_grow_with_length() -> None:
    """Twenty thousand tokens that never complete a character would take minutes if each looked back at all others."""
    tokenizer = ours("smollm2")
    lone = tokenizer.encode("🧿")[-1]

    def seconds(count: int) -> float:
        stream = IncrementalDetokenizer(tokenizer, [])
        begin = time.process_time()
        for _ in range(count):
            stream.push([lone])
        return time.process_time() - begin

    short = min(seconds(1_000) for _ in range(3))
    assert seconds(10_000) < 50 * short, "ten times the tokens are far more than ten times the work"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_special_tokens_are_marked_where_they_are(data: st.DataObject) -> None:
    tokenizer = ours(data.draw(st.sampled_from(["smollm2", "gemma3"])))
    special = sorted(tokenizer.special_ids)
    token = st.one_of(st.integers(0, 999), st.sampled_from(special))
    ids = data.draw(st.lists(token, max_size=20))
    stream = MarkingDetokenizer(tokenizer)
    shown, position = "", 0
    while position < len(ids):
        count = data.draw(st.integers(1, 4))
        shown += stream.push(ids[position : position + count])
        position += count
    shown += stream.flush()
    assert shown == tokenizer.decode(ids, skip_special_tokens=False)
    marked = [shown[start:stop] for start, stop in stream.specials]
    assert marked == [tokenizer.token_text(index) for index in ids if index in tokenizer.special_ids]
