"""Every source of a tokenizer against the package of its format: the same ids for random texts in many scripts.

The ids of sentencepiece, tiktoken and mistral-common are kept as digests (tests/checkpoints/tokenizers/make.py), so that
none of these packages is needed here. `make test-slow` compares 10,000 texts, the usual suite 200.
"""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import BertTokenizer, GPT2Tokenizer, Qwen2Tokenizer
from transformers import RobertaTokenizer as Roberta

from core_runtime.specs.checkpoint import TokenizerSource
from core_tokens.detokenizer import IncrementalDetokenizer
from core_tokens.tokenizer import Tokenizer
from tests.tokenizers.random_texts import BLOCK, digests, random_texts
from tests.tokenizers.tokenizers_for_tests import ours, reference

FILES = Path(__file__).parents[1] / "checkpoints" / "tokenizers"
DIGESTS: dict[str, list[str]] = json.loads((FILES / "digests.json").read_text())
TIES: dict[str, list[int]] = json.loads((FILES / "ties.json").read_text())
TRANSFORMERS: dict[str, list[str]] = json.loads((FILES / "transformers_digests.json").read_text())
SAME_VOCABULARY = {"kimi": "tiktoken.model", "qwen": "qwen.tiktoken"}
"""Tokenizers with llama3's vocabulary, and the name of its file in their folder."""
SLOW = pytest.mark.slow
COUNTS: list[Any] = [2 * BLOCK, pytest.param(100 * BLOCK, marks=SLOW)]
TOKENS = ["<s>", "</s>", "<unk>", "<pad>"]


@cache
def folder_of(name: str) -> Path:
    """The folder of a kept tokenizer; where the vocabulary is llama3's, a temporary one of this process."""
    kept = FILES / name
    if name not in SAME_VOCABULARY:
        return kept
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    atexit.register(shutil.rmtree, folder)
    if kept.is_dir():
        shutil.copytree(kept, folder, dirs_exist_ok=True)
    shutil.copy(FILES / "llama3" / "tokenizer.model", folder / SAME_VOCABULARY[name])
    return folder


@cache
def opened(name: str) -> Tokenizer:
    return Tokenizer.from_source(TokenizerSource(directory=str(folder_of(name))))


@cache
def texts_of(count: int) -> list[str]:
    return random_texts(count)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", DIGESTS)
def test_ids_equal_the_formats_own_package(name: str, count: int) -> None:
    rows = opened(name).encode_batch(texts_of(count), add_special_tokens=False)
    for place in TIES.get(name, []):
        if place < count:
            rows[place] = []
    assert digests(rows) == DIGESTS[name][: count // BLOCK]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("smollm2", COUNTS[0]),
        pytest.param("smollm2", 100 * BLOCK, marks=SLOW),
        pytest.param("gemma3", 100 * BLOCK, marks=SLOW),
    ],
)
def test_ids_of_the_real_vocabularies_equal_transformers(name: str, count: int) -> None:
    texts = [text for text in texts_of(count) if "▁" not in text]
    theirs = [encoding.ids for encoding in reference(name).encode_batch(texts)]
    assert ours(name).encode_batch(texts) == theirs
    if name in TRANSFORMERS:
        assert digests(theirs)[:2] == TRANSFORMERS[name]


@pytest.mark.parametrize("name", list(TRANSFORMERS))
def test_ids_equal_those_that_transformers_gave(name: str) -> None:
    """Its reading of gemma3's file takes 20 seconds, so the ids are kept as digests, which the slow test makes anew."""
    texts = [text for text in texts_of(3 * BLOCK) if "▁" not in text]
    assert digests(ours(name).encode_batch(texts)) == TRANSFORMERS[name]


def plain_files(directory: Path, kind: str) -> None:
    """`vocab.json` and `merges.txt`, or `vocab.txt`, of the tiny vocabulary that the tiktoken files have too."""
    if kind == "wordpiece":
        words = ["the", "token", "hello", "##ing", "##er", "world", "日", "привет", "!", "strasse"]
        letters = [chr(code) for low, high in ((0x61, 0x7B), (0x30, 0x3A), (0x430, 0x450)) for code in range(low, high)]
        tokens = [
            "[PAD]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
            *words,
            *letters,
            *("##" + letter for letter in letters),
        ]
        (directory / "vocab.txt").write_text("\n".join(tokens) + "\n")
        return
    state = json.loads(opened("llama3").backend.to_str())["model"]
    tokens = {token: index for token, index in state["vocab"].items() if index < 512}
    for token in TOKENS:
        tokens[token] = len(tokens)
    (directory / "vocab.json").write_text(json.dumps(tokens))
    merges = [" ".join(merge) for merge in state["merges"]]
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("kind", "reads", "configured"),
    [
        ("merges", GPT2Tokenizer, {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<unk>", "bos_token": "<s>"}),
        (
            "merges",
            GPT2Tokenizer,
            {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True, "eos_token": "</s>"},
        ),
        ("merges", Qwen2Tokenizer, {"tokenizer_class": "Qwen2Tokenizer", "pad_token": "<pad>", "eos_token": "</s>"}),
        ("merges", Roberta, {"tokenizer_class": "RobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}),
        ("wordpiece", BertTokenizer, {"tokenizer_class": "BertTokenizer"}),
        ("wordpiece", BertTokenizer, {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
    ],
)
def test_ids_of_plain_files_equal_transformers(tmp_path: Path, kind: str, reads, configured, count: int) -> None:
    plain_files(tmp_path, kind)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(configured))
    mine = Tokenizer.from_source(TokenizerSource(directory=str(tmp_path)))
    theirs = reads.from_pretrained(str(tmp_path))
    texts = texts_of(count)
    assert mine.encode_batch(texts) == theirs(texts)["input_ids"]
    sample = mine.encode(texts[0])
    assert mine.decode(sample, False) == theirs.decode(sample, clean_up_tokenization_spaces=False)
    pair = mine.encode_pair("hello world", "the token")
    expected = theirs("hello world", "the token", return_token_type_ids=True)
    assert pair.ids == expected["input_ids"]
    if kind == "wordpiece":
        assert pair.type_ids == expected["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


def random_ids(size: int, count: int, seed: int) -> list[int]:
    import random

    source = random.Random(seed)
    return [source.randrange(size) for _ in range(count)]


@pytest.mark.parametrize("name", [*DIGESTS, "wordpiece"])
def test_text_by_increments_is_the_whole_at_every_cut(name: str, tmp_path: Path) -> None:
    if name == "wordpiece":
        plain_files(tmp_path, name)
        tokenizer = Tokenizer.from_source(TokenizerSource(directory=str(tmp_path)))
    else:
        tokenizer = opened(name)
    for seed in range(20):
        ids = random_ids(tokenizer.vocab_size, 16, seed)
        skip = bool(seed % 2)
        for cut in range(len(ids) + 1):
            stream = IncrementalDetokenizer(tokenizer, [], skip)
            shown = stream.push(ids[:cut]) + stream.push(ids[cut:]) + stream.flush()
            assert shown == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("name", DIGESTS)
def test_texts_come_back(name: str) -> None:
    """But for what a vocabulary rewrites or lacks."""
    tokenizer = opened(name)
    text = "hello world, it's  1234 token\nlines" if name == "sentencepiece_bpe" else "hello world, it's 1234 tokens"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    if "unigram" not in name:
        for text in texts_of(200)[:50]:
            if "▁" not in text and name != "qwen":
                assert tokenizer.decode(tokenizer.encode(text, False), False) == text
