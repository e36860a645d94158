"""The kit's conformance suite, and a few words."""

import json

import pytest
from core_my_plugin.manifest import Arguments
from core_my_plugin.tokenizer import WordsAndBytes

from core_kit import cases


@pytest.mark.parametrize("case", cases("tokenizer", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_the_longest_word_is_one_token(tmp_path):
    (tmp_path / "words.json").write_text(json.dumps(["hel", "hello", "wörld"]))
    tokenizer = WordsAndBytes(str(tmp_path), Arguments())
    ids = tokenizer.encode("hello, wörld")
    assert ids == [257, ord(","), ord(" "), 258]
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "hello, wörld"
    assert tokenizer.control == {"<|end|>": 259}
