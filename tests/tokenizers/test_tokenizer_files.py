"""What stands in a tokenizer's directory: which file is read, what the files beside it change, and what damage says."""

import base64
import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from core.api.errors import CheckpointError, RequestError
from core_runtime.specs.checkpoint import TokenizerSource, Vocabulary
from core_tokens.chat.chat_template import ChatTemplate
from core_tokens.files import has_tokenizer
from core_tokens.tokenizer import Tokenizer
from core_tokens.tokenizer_config import NEUTRAL, why_neutral
from tests.tokenizers.test_formats import FILES, folder_of, opened


def read(directory: Path, mode: str = "auto") -> Tokenizer:
    return Tokenizer.from_source(TokenizerSource(directory=str(directory)), mode=mode)


def with_json(directory: Path, **settings: Any) -> Tokenizer:
    """A tokenizer.json of the tiny byte-level vocabulary, and the settings beside it."""
    opened("llama3").backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return read(directory)


def test_modes_choose_among_files(tmp_path: Path) -> None:
    with_json(tmp_path)
    shutil.copy(FILES / "tekken" / "tekken.json", tmp_path)
    assert read(tmp_path).vocab_size == read(tmp_path, "hf").vocab_size == opened("llama3").vocab_size
    assert read(tmp_path, "mistral").vocab_size == read(tmp_path, "slow").vocab_size == 510
    (tmp_path / "tekken.json").unlink()
    with pytest.raises(CheckpointError, match=r"mode mistral reads tekken\.json or tokenizer\.model"):
        read(tmp_path, "mistral")
    with pytest.raises(CheckpointError, match="mode slow reads the format's own files"):
        read(tmp_path, "slow")
    with pytest.raises(CheckpointError, match="carries its tokenizer inside"):
        Tokenizer.from_source(TokenizerSource(vocabulary=Vocabulary("bpe", ["a"])), mode="slow")
    assert has_tokenizer(folder_of("kimi")) and has_tokenizer(tmp_path) and not has_tokenizer(FILES)


def test_one_file_may_be_named() -> None:
    named = Tokenizer.from_source(TokenizerSource(), str(folder_of("qwen") / "qwen.tiktoken"))
    assert named.encode("hello") == opened("qwen").encode("hello")
    with pytest.raises(CheckpointError, match="no file of a tokenizer"):
        Tokenizer.from_source(TokenizerSource(), str(FILES / "make.py"))


SETTINGS: list[dict[str, Any]] = [
    {"add_bos_token": True, "bos_token": "<|begin_of_text|>"},
    {"add_bos_token": False, "bos_token": "<|begin_of_text|>"},
    {"add_bos_token": True, "add_eos_token": True, "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    {"add_eos_token": True, "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    {"add_bos_token": True},
    {"bos_token": "<|begin_of_text|>", "clean_up_tokenization_spaces": True},
    {"split_special_tokens": True, "bos_token": "<|begin_of_text|>"},
    {"pad_token": "hello", "additional_special_tokens": ["<new>"], "image_token": "<x>"},
    {
        "added_tokens_decoder": {
            "768": {"content": "<tool>", "special": False},
            "769": {"content": "<x>", "special": True},
        }
    },
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings))
def test_settings_do_what_they_do_in_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    mine = with_json(tmp_path, tokenizer_class="PreTrainedTokenizerFast", **settings)
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    for text in ("hello", "a <|begin_of_text|>b <tool> <x><new>", ""):
        ids = mine.encode(text)
        assert ids == theirs(text)["input_ids"]
        assert mine.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
        for skip in (True, False):
            assert mine.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert mine.encode_pair("a", "b").ids == theirs("a", "b")["input_ids"]
    restored = Tokenizer.restore(mine.snapshot)
    assert restored.encode("<|begin_of_text|>a") == mine.encode("<|begin_of_text|>a")


def test_added_tokens_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with_json(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<a>": 768, "<b>": 800}))
    with caplog.at_level(logging.WARNING):
        tokenizer = read(tmp_path)
    assert tokenizer.encode("x<a>", False)[-1] == 768
    assert "'<b>' should have the id 800, and got 769" in caplog.text


def test_no_key_is_dropped_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        with_json(tmp_path, frobnicate=1, model_max_length=5, image_token="<i>")
    assert "frobnicate" in caplog.text and "model_max_length" not in caplog.text and "image_token" not in caplog.text
    assert why_neutral("add_bos_token") is None and why_neutral("padding_side") == "texts are not padded"
    assert all(reason for reason in NEUTRAL.values())


def test_sentencepiece_ends_and_spaces(tmp_path: Path) -> None:
    shutil.copy(FILES / "sentencepiece_bpe" / "tokenizer.model", tmp_path)
    plain = read(tmp_path)
    assert plain.encode("hello")[0] == plain.bos_token_id == 1 and plain.eos_token_id == 2
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False, "add_eos_token": True}))
    assert read(tmp_path).encode("hello") == [*plain.encode("hello", False), 2]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"legacy": False}))
    later = read(tmp_path)
    assert plain.encode("hello</s>hello", False) == [*plain.encode("hello", False), 2, *plain.encode("hello", False)]
    assert later.token_text(later.encode("hello</s>hello", False)[-1]) != " hello"
    assert "".join(map(later.token_text, later.encode("hello</s>hello", False))) == " hello</s>hello"
    unigram = opened("sentencepiece_unigram")
    assert unigram.encode("hello")[-1] == unigram.eos_token_id


def test_special_tokens_of_ranked_files() -> None:
    llama = opened("llama3")
    assert llama.encode("<|begin_of_text|>hi<|eot_id|>", False)[0] == 512 == llama.bos_token_id
    assert llama.token_text(llama.largest_id) == "<|reserved_special_token_246|>" and llama.largest_id == 512 + 255
    assert opened("qwen").token_text(514) == "<|im_end|>"
    assert opened("kimi").eos_token_id == 512
    tekken = opened("tekken")
    assert tekken.encode("[INST]hi[/INST]") == [1, 3, *tekken.encode("hi", False), 4]
    assert tekken.token_text(9) == "<SPECIAL_9>"


def test_chat_templates_of_all_places(tmp_path: Path) -> None:
    with_json(tmp_path, chat_template=[{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}])
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R")
    tokenizer = read(tmp_path)
    assert tokenizer.chat_template == "D" and tokenizer.named_templates == {"tool_use": "T", "rag": "R"}
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert read(tmp_path).chat_template == "J"
    (tmp_path / "chat_template.jinja").write_text("F")
    assert read(tmp_path).chat_template == "F"
    (tmp_path / "chat_template.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"chat_template\.json: has no chat_template"):
        read(tmp_path)
    template = ChatTemplate("plain", {}, for_tools="{{ tools[0].name }}")
    messages = [{"role": "user", "content": "a"}]
    assert template.render(messages) == "plain" and template.render(messages, tools=[{"name": "f"}]) == "f"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v3", "<s>[INST]hi[/INST]yo</s>[INST]be\n\ngo[/INST]"),
        ("v7", "<s>[SYSTEM_PROMPT]be[/SYSTEM_PROMPT][INST]hi[/INST]yo</s>[INST]go[/INST]"),
        ("v13", "<s>[SYSTEM_PROMPT]be[/SYSTEM_PROMPT][INST]hi[/INST]yo</s>[INST]go[/INST]"),
        ("v99", None),
    ],
)
def test_conversations_of_tekken_files(tmp_path: Path, version: str, expected: str | None) -> None:
    """As mistral-common writes them."""
    document = json.loads((FILES / "tekken" / "tekken.json").read_text())
    document["config"]["version"] = version
    (tmp_path / "tekken.json").write_text(json.dumps(document))
    tokenizer = read(tmp_path)
    template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)
    turns = [("system", "be"), ("user", "hi"), ("assistant", "yo"), ("user", "go")]
    messages = [{"role": role, "content": content} for role, content in turns]
    if expected is None:
        with pytest.raises(RequestError, match="--chat-template"):
            template.render(messages)
        return
    assert template.render(messages) == expected
    assert template.render(messages[:3], add_generation_prompt=False).endswith("[/INST]yo</s>")
    with pytest.raises(RequestError, match="in turns"):
        template.render(messages[1:2] * 2)
    with pytest.raises(RequestError, match="tools need"):
        template.render(messages, tools=[{"name": "f"}])


def test_pairs_have_types(tmp_path: Path) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"]
    vocabulary = Vocabulary(
        "wordpiece", tokens, unk_token_id=1, bos_token_id=2, sep_token_id=3, add_bos=True, add_sep=True
    )
    tokenizer = Tokenizer.from_source(TokenizerSource(vocabulary=vocabulary))
    pair = tokenizer.encode_pair("a b", "b")
    assert (pair.ids, pair.type_ids) == ([2, 4, 5, 3, 5, 3], [0, 0, 0, 0, 1, 1])
    assert tokenizer.encode_pair("a", "b", add_special_tokens=False).ids == [4, 5]
    assert tokenizer.encode_pairs([("a", "b"), ("b", "")])[1].ids == [2, 5, 3, 3]
    with pytest.raises(RequestError, match="Unicode"):
        tokenizer.encode_pair("a", "\ud800")


def test_without_a_tokenizer_texts_are_empty() -> None:
    tokenizer = Tokenizer.restore(Tokenizer.absent().snapshot)
    assert tokenizer.decode([1, 2, 3]) == tokenizer.token_text(5) == ""
    with pytest.raises(RequestError, match="--skip-tokenizer-init"):
        tokenizer.encode("a")


def line(data: bytes, rank: int) -> bytes:
    return base64.b64encode(data) + f" {rank}\n".encode()


DAMAGED: list[tuple[str, bytes, str]] = [
    ("tokenizer.model", b"\x0a\x05\x0aabc", "cannot be read as a sentencepiece model .*ends within"),
    ("tokenizer.model", b"\x0a\x03\x0a\x01\xff", "cannot be read as a sentencepiece model"),
    ("tokenizer.model", b"\x0a\x02\x0a\x00\x12\x02\x18\x03", "kind 'word'; expected bpe or unigram"),
    ("tokenizer.model", b"\x0a\x02\x0a\x00\xff" + b"\xff" * 12, "more than 10 bytes"),
    ("tokenizer.model", b"", "holds no tokens"),
    ("tokenizer.model", b"QQ== 0\nQ?== 1\n", "line 2 is .*expected a token in base64"),
    ("tokenizer.model", line(b"a", 0) + line(b"b", 0), "line 2: the rank 0 is given twice"),
    ("tokenizer.model", line(b"a", 0) + line(b"b", 2), "none of rank 1"),
    ("tokenizer.model", line(b"a", 0) + line(b"a", 1), "the token 'a' twice"),
    ("tiktoken.model", line(b"a", 0), "splits text is not known"),
    ("tekken.json", b"{", "is not valid JSON"),
    ("tekken.json", b"[" * 100_000, "is not valid JSON"),
    ("tekken.json", b"{}", "lacks the key 'config'"),
    ("sentencepiece.bpe.model", b"\x0a\x02\x0a\x00", "have other ids than the file's"),
    ("vocab.txt", b"a\nb\n", r"names no unknown token, .*\[UNK\]"),
    ("vocab.txt", b"\xff\xfe", "not valid UTF-8"),
    ("tokenizer_config.json", b'{"add_bos_token": 3}', "add_bos_token is 3, expected true or false"),
    ("tokenizer_config.json", b"[]", "holds a JSON list"),
    ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "expected an id and its token"),
    ("added_tokens.json", b'{"a": -1}', "the token 'a' has the id -1"),
]


@pytest.mark.parametrize(("name", "content", "said"), DAMAGED)
def test_damage_ends_in_a_sentence_with_the_file(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    if name.endswith("tokens.json") or name.endswith("config.json"):
        opened("llama3").backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=said) as caught:
        read(tmp_path)
    assert name in str(caught.value)


def test_damaged_merges(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    with pytest.raises(CheckpointError, match="there is no tokenizer"):  # no merges.txt
        read(tmp_path)
    (tmp_path / "merges.txt").write_text("#version\na b\n")
    assert read(tmp_path).encode("ab") == [2]
    for merges, said in (("a c", "joins no two tokens"), ("a b c", "joins no two tokens"), ("b a", "to a third one")):
        (tmp_path / "merges.txt").write_text(merges)
        with pytest.raises(CheckpointError, match=said):
            read(tmp_path)
    for vocab, said in (
        ('{"a": 0, "b": 0}', "belongs to 'a' and to 'b'"),
        ('{"a": 99999999}', "ids up to"),
        ("[]", "object"),
    ):
        (tmp_path / "vocab.json").write_text(vocab)
        with pytest.raises(CheckpointError, match=said):
            read(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    with pytest.raises(CheckpointError, match=r"how 'CLIPTokenizer' splits text .*save_pretrained"):
        read(tmp_path)


def test_every_cut_of_a_model_file_is_refused_or_read(tmp_path: Path) -> None:
    """A file that ends early, or has a wrong byte, never ends in anything but a tokenizer or a sentence."""
    whole = (FILES / "sentencepiece_unigram" / "spiece.model").read_bytes()
    path = tmp_path / "spiece.model"
    for count in range(30):
        place = count * len(whole) // 30
        for content in (whole[:place], whole[:place] + b"\xff" + whole[place + 1 :]):
            path.write_bytes(content)
            try:
                read(tmp_path).encode("hello")
            except CheckpointError:
                continue


@pytest.mark.parametrize("name", ["sentencepiece_bpe", "sentencepiece_unigram", "llama3", "tekken"])
def test_the_work_of_a_word_grows_with_its_length_alone(name: str) -> None:
    tokenizer = opened(name)

    def seconds(length: int) -> float:
        begin = time.process_time()
        for piece in ("a", " ", "ab", "日", "\u0301"):
            tokenizer.encode("e" + piece * length)
        return time.process_time() - begin

    seconds(100)  # what is made at the first use
    short = min(seconds(3_000) for _ in range(3))
    assert seconds(30_000) < 50 * max(short, 0.001), "ten times the length is far more than ten times the work"


def test_a_token_of_a_megabyte_does_not_hold_up_the_start() -> None:
    tokens = ["a", "a" * 1_000_000]
    vocabulary = Vocabulary("spm", tokens, scores=[0.0, -1.0], byte_fallback=False)
    assert Tokenizer.from_source(TokenizerSource(vocabulary=vocabulary)).encode("aa")
