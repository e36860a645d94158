"""The tokenizer of the checkpoints that are kept here: one word an entry, 128 in all."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

COUNT = 128


def save_tokenizer(directory: Path) -> None:
    """Write `tokenizer.json` and what transformers needs beside it."""
    words = ["<pad>", "<s>", "</s>", "<unk>"]
    for number in range(len(words), COUNT):
        words.append(f"w{number}")
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials).save_pretrained(directory)
