"""The bytes of tokens are those that xgrammar finds in the same tokenizer by itself."""

import pytest
import tokenizers
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from core_grammars.vocabulary import grammar_vocabulary
from core_tokens.tokenizer import Tokenizer
from tests.tokenizers.tokenizers_for_tests import ours, reference_directory

PADDING = 70


def with_byte_fallback():
    """A small vocabulary as sentencepiece models have it."""
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "a", "▁a", "ä", "▁▁", "▁日本"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.add_special_tokens(["<unk>", "<s>", "</s>", "<tool>"])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return backend


def compare(tokenizer, reference):
    xgrammar = pytest.importorskip("xgrammar")
    size = tokenizer.largest_id + 1 + PADDING
    found = grammar_vocabulary(tokenizer, size, [2, size + 5])
    expected = xgrammar.TokenizerInfo.from_huggingface(reference, vocab_size=size, stop_token_ids=[2]).decoded_vocab
    pairs = enumerate(zip(found.tokens, expected, strict=True))
    different = [index for index, (mine, theirs) in pairs if mine != theirs and index not in tokenizer.special_ids]
    assert different == []
    assert found.tokens[-PADDING:] == [b""] * PADDING
    assert found.stop_ids == [2]
    assert all(not found.tokens[index] and found.specials[index] for index in tokenizer.special_ids)
    return found


@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_real_vocabularies(name):
    file = reference_directory(name) / "tokenizer.json"
    compare(ours(name), PreTrainedTokenizerFast(tokenizer_file=str(file)))


def test_byte_fallback():
    backend = with_byte_fallback()
    reference = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    found = compare(Tokenizer(backend, eos_token_id=2), reference)
    assert [found.tokens[index] for index in (3, 258, 259, 261)] == [b"\x00", b"\xff", b" ", b" a"]
    assert found.specials[265] == "<tool>"


def test_the_digest_names_all_of_it():
    tokenizer = Tokenizer(with_byte_fallback())
    digests = {grammar_vocabulary(tokenizer, size, [stop]).digest for size in (266, 267) for stop in (1, 2)}
    assert len(digests) == 4
    assert grammar_vocabulary(tokenizer, 266, [1]).digest in digests
