"""Ids and texts against transformers' tokenizers of the same files."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from core.api.errors import CheckpointError, RequestError
from core_runtime.specs.checkpoint import TokenizerSource, Vocabulary
from core_tokens.tokenizer import Tokenizer
from core_tokens.vocabularies.pretokenizers import LLAMA3, QWEN2
from tests.tokenizers.tokenizers_for_tests import PATHS, ours, reference, reference_directory

CORPUS = [
    "",
    " ",
    "Hello world",
    "  two  spaces   three    four ",
    "1234 5678901 3.14 -1e-5 0x1F ½ ² ௧",
    "def f(x):\n    return x**2\n\n\n\tif y:\n\t\tpass\r\n",
    "😀👩‍👩‍👧 naïve café Ünïcödé e\u0301 Å ﬁ ＡＢ①",
    "日本語のテキスト。中文，한국어 עברית العربية हिन्दी ไทย",
    "<html><body class='x'>a</body></html>",
    "a\u00a0d\u200b\u2028e\ufefff",
    "it's I'LL we'Ve don't 'tis rock'n'roll",
    "\n\n\n\n\n x",
    "x   \n  \n",
    "<|im_start|>user\nhi<|im_end|>\n<bos>q<start_of_turn>user\nhello<end_of_turn>\n</s>",
    "🏳️‍🌈\U0001f9ff\ue000\uffff\x00\x01\x7f",
    '#include <stdio.h>\nint main(){printf("%d\\n",1e-5);}',
    "https://a.b/c?d=e&f=%20 user@example.org",
    "The quick brown fox jumps over the lazy dog. " * 20,
]
MODELS = [name if name == "smollm2" else pytest.param(name, marks=pytest.mark.slow) for name in PATHS]
"""Transformers takes 20 seconds to read gemma3's; test_formats.py holds its ids against digests in every run."""


@pytest.mark.parametrize("name", MODELS)
def test_ids_and_texts_equal_transformers(name: str) -> None:
    mine, theirs = ours(name), reference(name)
    assert mine.encode_batch(CORPUS) == [encoding.ids for encoding in theirs.encode_batch(CORPUS)]
    for text in CORPUS:
        ids = mine.encode(text)
        assert mine.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False).ids
        for skip in (True, False):
            assert mine.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_equals_transformers(name: str, text: str) -> None:
    if "▁" not in text:
        ids = ours(name).encode(text, add_special_tokens=False)
        assert ids == reference(name).encode(text, add_special_tokens=False).ids


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(text: str) -> None:
    tokenizer = ours("gemma3")  # SmolLM2's vocabulary lacks some bytes
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_runs_of_user_defined_tokens_are_matched_longest_first() -> None:
    """As sentencepiece does: a run of 40 newlines is the token of 31 and the token of 9."""
    tokenizer = ours("gemma3")
    assert [tokenizer.token_text(i) for i in tokenizer.encode("\n" * 40, False)] == ["\n" * 31, "\n" * 9]


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=20), skip=st.booleans())
def test_any_ids_decode_as_the_library_does(ids: list[int], skip: bool) -> None:
    mine = ours("smollm2")
    assert mine.decode(ids, skip) == reference("smollm2").decode(ids, skip_special_tokens=skip)
    assert mine.join_bytes(ids, skip).decode(errors="replace") == mine.decode(ids, skip)


@pytest.mark.parametrize(("row", "pattern"), [(LLAMA3, None), (QWEN2, PRETOKENIZE_REGEX)])
def test_pieces_equal_those_of_transformers_patterns(row, pattern: str | None) -> None:
    import inspect

    known = pattern or inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    theirs = tokenizers.pre_tokenizers.Split(tokenizers.Regex(known), "isolated")
    mine = tokenizers.pre_tokenizers.Split(tokenizers.Regex(row.patterns[0]), "isolated")
    for text in CORPUS:
        assert mine.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


@pytest.mark.parametrize("name", MODELS)
def test_directory_and_special_tokens(name: str) -> None:
    directory = reference_directory(name)
    ways = [
        (TokenizerSource(directory=str(directory)), None),
        (TokenizerSource(), str(directory)),
        (TokenizerSource(), str(directory / "tokenizer.json")),
    ]
    for source, override in ways if name == "smollm2" else ways[:1]:
        read = Tokenizer.from_source(source, override)
        assert read.encode("Hello, wörld") == ours(name).encode("Hello, wörld")
        assert (read.bos_token_id, read.eos_token_id, read.pad_token_id) == (
            ours(name).bos_token_id,
            ours(name).eos_token_id,
            ours(name).pad_token_id,
        )
        assert read.vocab_size == ours(name).vocab_size
    assert read.chat_template == ours(name).chat_template
    expected = json.loads((directory / "tokenizer_config.json").read_text())
    assert ours(name).special_tokens["bos_token"] == expected["bos_token"]
    assert ours(name).special_tokens["eos_token"] == expected["eos_token"]


def test_single_tokens() -> None:
    smollm2, gemma3 = ours("smollm2"), ours("gemma3")
    emoji = smollm2.encode("🧿")
    assert len(emoji) > 1 and b"".join(map(smollm2.token_bytes, emoji)) == "🧿".encode()
    assert smollm2.token_text(smollm2.encode(" world")[0]) == " world"
    assert gemma3.token_text(gemma3.encode(" world", False)[0]) == " world"
    assert gemma3.token_bytes(238 + 0xFF) == b"\xff"
    assert smollm2.token_bytes(10**9) == b"" and smollm2.token_text(-1) == ""
    assert 2 in smollm2.special_ids and len(smollm2.special_ids) == 17


def test_half_a_character_is_refused() -> None:
    tokenizer = ours("smollm2")
    with pytest.raises(RequestError, match="Unicode"):
        tokenizer.encode("a\ud800b")


def test_sentencepiece_with_a_space_prefix() -> None:
    """Llama 2's convention: a space before the text, dropped again when decoding."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "▁h", "hi", "▁hi"]
    scores = [0.0] * 259 + [-4.0, -5.0, -6.0, -2.0, -1.0, -3.0]
    vocabulary = Vocabulary(
        "spm", pieces, scores=scores, types=[2, 3, 3] + [6] * 256 + [1] * 6, bos_token_id=1, eos_token_id=2,
        unk_token_id=0, add_bos=True, add_eos=True, add_space_prefix=True,
    )  # fmt: skip
    tokenizer = Tokenizer.from_source(TokenizerSource(vocabulary=vocabulary))
    assert tokenizer.encode("hi hi") == [1, 264, 264, 2]
    assert tokenizer.decode([1, 264, 264, 2]) == "hi hi"
    assert tokenizer.decode(tokenizer.encode("é\n")) == "é\n"


def test_unusable_tokenizers_end_in_sentences(tmp_path: Path) -> None:
    cases = [
        (Vocabulary("bpe", ["a", "b", "a"]), "twice"),
        (Vocabulary("bpe", ["a", "b"], merges=["a c"]), "cannot be used"),
        (Vocabulary("bpe", ["a"], merges=["a"]), "cannot be used"),
        (Vocabulary("bpe", ["a"], pre="qwen22"), "Did you mean 'qwen2'"),
    ]
    for vocabulary, expected in cases:
        with pytest.raises(CheckpointError, match=expected):
            Tokenizer.from_source(TokenizerSource(vocabulary=vocabulary))
    with pytest.raises(CheckpointError, match="--tokenizer"):
        Tokenizer.from_source(TokenizerSource())
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.from_source(TokenizerSource(), str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.from_source(TokenizerSource(), str(tmp_path))


def test_chat_template_of_a_directory(tmp_path: Path) -> None:
    reference("smollm2").save(str(tmp_path / "tokenizer.json"))
    rows = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    settings_file = tmp_path / "tokenizer_config.json"
    settings_file.write_text(json.dumps({"chat_template": rows, "eos_token": {"content": "<|im_end|>"}}))
    read = Tokenizer.from_source(TokenizerSource(directory=str(tmp_path)))
    assert read.chat_template == "D" and read.eos_token_id == 2
    (tmp_path / "chat_template.jinja").write_text("J")
    assert Tokenizer.from_source(TokenizerSource(directory=str(tmp_path))).chat_template == "J"
    assert Tokenizer.from_source(TokenizerSource(directory=str(tmp_path), chat_template="G")).chat_template == "G"
