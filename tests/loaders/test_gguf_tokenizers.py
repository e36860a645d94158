"""Tokenizers of GGUF files of every kind: the same ids as the files that such a tokenizer was converted from."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.api.errors import CheckpointError
from core_loaders.gguf.metadata import Metadata
from core_loaders.gguf.vocabulary import read_tokenizer
from core_runtime.specs.checkpoint import TokenizerSource
from core_tokens.tokenizer import Tokenizer
from core_tokens.vocabularies.pretokenizers import PRE_TOKENIZERS
from core_tokens.vocabularies.sentencepiece_file import read_sentencepiece
from tests.tokenizers.random_texts import random_texts
from tests.tokenizers.test_formats import FILES, opened, plain_files

TEXTS = random_texts(200)


def source_of(**values: Any) -> TokenizerSource:
    """What a GGUF file with this `tokenizer.ggml` metadata says; a key with a dot stands for itself."""
    named = {key if "." in key else f"tokenizer.ggml.{key}": value for key, value in values.items()}
    return read_tokenizer(Metadata("m.gguf", named), len(values["tokens"]))


def of_model_file(folder: str, name: str, kind: str) -> TokenizerSource:
    """A sentencepiece file as llama.cpp's conversion writes it."""
    model = read_sentencepiece(FILES / folder / name)
    return source_of(
        model=kind,
        tokens=model.tokens,
        scores=model.scores,
        token_type=model.types,
        bos_token_id=model.bos_token_id,
        eos_token_id=model.eos_token_id,
        unknown_token_id=model.unk_token_id,
        add_space_prefix=model.add_space_prefix,
        remove_extra_whitespaces=model.remove_extra_whitespaces,
        precompiled_charsmap=[byte - 256 if byte > 127 else byte for byte in model.charsmap],
    )


@pytest.mark.parametrize(
    ("folder", "name", "kind"),
    [
        ("sentencepiece_bpe", "tokenizer.model", "llama"),
        ("sentencepiece_unigram", "spiece.model", "t5"),
        ("sentencepiece_unigram_bytes", "spiece.model", "t5"),
    ],
)
def test_sentencepiece_kinds(folder: str, name: str, kind: str) -> None:
    mine = Tokenizer.from_source(of_model_file(folder, name, kind))
    assert mine.encode_batch(TEXTS) == opened(folder).encode_batch(TEXTS)
    assert mine.decode(mine.encode("hello world")) == "hello world"


def test_bert(tmp_path: Path) -> None:
    plain_files(tmp_path, "wordpiece")
    theirs = Tokenizer.from_source(TokenizerSource(directory=str(tmp_path)))
    tokens = []
    for token in (tmp_path / "vocab.txt").read_text().split():
        is_named = token.startswith("[")
        tokens.append(token if is_named else token.removeprefix("##") if token.startswith("##") else "▁" + token)
    values = {"model": "bert", "tokens": tokens, "token_type": [3] * 5 + [1] * (len(tokens) - 5), "unknown_token_id": 1}
    mine = Tokenizer.from_source(source_of(**values, cls_token_id=2, seperator_token_id=3, padding_token_id=0))
    assert mine.encode_batch(TEXTS) == theirs.encode_batch(TEXTS)
    assert mine.encode_pair("hello", "the") == theirs.encode_pair("hello", "the")
    cased = Tokenizer.from_source(source_of(**values, **{"tokenizer.ggml.normalizer.lowercase": False}))
    assert cased.encode("THE", False) == [1]


@pytest.mark.parametrize("pre", [name for name in PRE_TOKENIZERS if name])
def test_byte_level_texts_come_back(pre: str) -> None:
    """Whatever the way to split, no part of a text is lost."""
    tokens = opened("llama3").backend.get_vocab(with_added_tokens=False)
    ordered = sorted(tokens, key=tokens.__getitem__)[:512]
    merges = [" ".join(merge) for merge in json.loads(opened("llama3").backend.to_str())["model"]["merges"]]
    mine = Tokenizer.from_source(source_of(model="gpt2", pre=pre, tokens=ordered, merges=merges))
    composes = PRE_TOKENIZERS[pre].compose
    for text in TEXTS[:40]:
        ids = mine.encode(text, False)
        assert composes or mine.decode(ids, False) == text


def test_tokens_around_a_text_by_pre_tokenizer() -> None:
    values = {"model": "gpt2", "tokens": ["a", "<s>", "</s>"], "merges": [], "token_type": [1, 3, 3], "bos_token_id": 1}
    assert Tokenizer.from_source(source_of(**values, pre="llama-bpe")).encode("a") == [1, 0]
    assert Tokenizer.from_source(source_of(**values, pre="llama-bpe", add_bos_token=False)).encode("a") == [0]
    assert Tokenizer.from_source(source_of(**values, pre="gpt-2")).encode("a") == [0]
    separated = source_of(**values, pre="roberta-bpe", seperator_token_id=2, add_bos_token=True)
    assert Tokenizer.from_source(separated).encode_pair("a", "a").ids == [1, 0, 2, 2, 0, 2]


def test_ranked_tokens_without_merges() -> None:
    tokens = opened("kimi").backend.get_vocab(with_added_tokens=True)
    ordered = sorted(tokens, key=tokens.__getitem__)
    types = [1] * 512 + [3] * 2
    mine = Tokenizer.from_source(source_of(model="gpt2", pre="kimi-k2", tokens=ordered, token_type=types))
    assert mine.encode_batch(TEXTS) == opened("kimi").encode_batch(TEXTS)
    with pytest.raises(CheckpointError, match="merges"):
        source_of(model="gpt2", pre="qwen2", tokens=ordered)


def test_none_and_kinds_that_are_not_served() -> None:
    assert source_of(model="none", tokens=[]) == source_of(model="no_vocab", tokens=[]) == TokenizerSource()
    for kind, said in (
        ("rwkv", "longest token at every byte"),
        ("gemma4", "over characters"),
        ("lama", "mean 'llama'"),
    ):
        with pytest.raises(CheckpointError, match=f"{said}.*--skip-tokenizer-init"):
            source_of(model=kind, tokens=[])


def test_named_templates() -> None:
    values = {"tokenizer.chat_template": "D", "tokenizer.chat_templates": ["rag", "tool_use"]}
    values |= {"tokenizer.chat_template.rag": "R", "tokenizer.chat_template.tool_use": "T"}
    source = source_of(model="gpt2", tokens=["a"], merges=[], **values)
    assert source.chat_template == "D" and source.named_templates == {"rag": "R", "tool_use": "T"}
    del values["tokenizer.chat_template.rag"]
    with pytest.raises(CheckpointError, match=r"tokenizer\.chat_template\.rag"):
        source_of(model="gpt2", tokens=["a"], merges=[], **values)


def test_rules_that_are_no_bytes() -> None:
    with pytest.raises(CheckpointError, match="no bytes"):
        source_of(model="t5", tokens=["a"], scores=[0.0], precompiled_charsmap=[300])
    broken = source_of(
        model="t5", tokens=["a", "b"], scores=[0.0, 0.0], unknown_token_id=0, precompiled_charsmap=[1, 2]
    )
    with pytest.raises(CheckpointError, match="precompiled_charsmap"):
        Tokenizer.from_source(broken)
