"""The tokenizer that scripts get, against transformers' own class on the same files."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from core.api.errors import RequestError
from core_runtime.specs.checkpoint import TokenizerSource
from core_tokens.script_tokenizer import ScriptTokenizer
from core_tokens.tokenizer import Tokenizer

TEXTS = ["plain text", "", " leading", "ünïcödé 日本", "a<s>b</s>"]
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


@pytest.fixture(scope="module")
def both(tiny_llama: Path) -> tuple[ScriptTokenizer, Any]:
    source = TokenizerSource(directory=str(tiny_llama))
    return ScriptTokenizer(Tokenizer.from_source(source)), AutoTokenizer.from_pretrained(tiny_llama)


def test_texts_and_ids(both: tuple[ScriptTokenizer, Any]) -> None:
    ours, theirs = both
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text) == ours(text).input_ids == theirs(text)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.tokenize(text) == theirs.tokenize(text)
    batch = ours(TEXTS)
    assert dict(batch) == {name: theirs(TEXTS)[name] for name in ("input_ids", "attention_mask")}
    assert ours.batch_decode(batch.input_ids) == theirs.batch_decode(batch["input_ids"])


def test_the_vocabulary(both: tuple[ScriptTokenizer, Any]) -> None:
    ours, theirs = both
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert len(ours) == len(theirs)
    assert ours.all_special_ids == sorted(theirs.all_special_ids)
    for name in ("bos_token", "eos_token", "pad_token", "unk_token", "bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(ours, name) == getattr(theirs, name)
    tokens = ours.convert_ids_to_tokens([1, 2, 70])
    assert tokens == theirs.convert_ids_to_tokens([1, 2, 70])
    assert ours.convert_tokens_to_ids(tokens) == [1, 2, 70]
    assert ours.convert_tokens_to_ids("no such token") == theirs.convert_tokens_to_ids("no such token")
    assert ours.convert_tokens_to_string(["a", "b"]) == theirs.convert_tokens_to_string(["a", "b"])


def test_conversations(both: tuple[ScriptTokenizer, Any]) -> None:
    ours, theirs = both
    for options in ({}, {"add_generation_prompt": True}, {"tokenize": False}, {"continue_final_message": True}):
        options = {"return_dict": False, **options}
        assert ours.apply_chat_template(CHAT, **options) == theirs.apply_chat_template(CHAT, **options)
        assert ours.apply_chat_template([CHAT, CHAT], **options) == theirs.apply_chat_template([CHAT, CHAT], **options)


def test_what_is_not_done_is_refused(both: tuple[ScriptTokenizer, Any]) -> None:
    ours, _ = both
    assert ours("a", padding=False, truncation=None).input_ids == ours.encode("a")
    with pytest.raises(RequestError, match="padding=True is not served"):
        ours("a", padding=True)
    with pytest.raises(RequestError, match="return_tensors='pt' is not served"):
        ours.apply_chat_template(CHAT, return_tensors="pt")
    with pytest.raises(RequestError, match=r"unknown option 'paddin'. Did you mean 'padding'"):
        ours.encode("a", paddin=False)
