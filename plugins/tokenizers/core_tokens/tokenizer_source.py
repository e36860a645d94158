"""The source of a tokenizer: a directory with its files, or a vocabulary as data.

Owns: `TokenizerSource` and `Vocabulary`. Never does: read files, make a tokenizer (`core_tokens` does).
Called by: loaders (they find the source), tokens.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Vocabulary(msgspec.Struct, frozen=True):
    """A tokenizer given as data rather than as `tokenizer.json`.

    model: one of
        `bpe`: byte-level, tokens spelled in GPT-2's printable characters, with merges; without them, neighbours whose union
        has the best score are merged;
        `spm`: sentencepiece's BPE, with scores;
        `unigram`: sentencepiece's unigram, with scores;
        `wordpiece`: BERT's, later pieces of a word written with `##`.
    pre: name of the pre-tokenizer (`smollm`, `llama-bpe`, ...), or empty. For `bpe`.
    pattern: regular expression whose matches are merged apart, instead of `pre`.
    types: GGUF token types: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    sep_token_id: token after each text where `add_sep` asks for one.
    add_space_prefix: a space goes before the text.
    space_prefix_once: not again after a special token within the text.
    byte_fallback: characters without a token become tokens of bytes. For `spm` and `unigram`.
    charsmap: sentencepiece's compiled rules of normalization, or empty.
    remove_extra_whitespaces: runs of spaces count as one, those at the ends not at all.
    lowercase, strip_accents, split_chinese: BERT's normalization. strip_accents: None does what `lowercase` says.
    """

    model: Literal["bpe", "spm", "unigram", "wordpiece"]
    tokens: list[str]
    pre: str = ""
    merges: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    unk_token_id: int | None = None
    pad_token_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    pattern: str = ""
    sep_token_id: int | None = None
    add_sep: bool = False
    space_prefix_once: bool = False
    byte_fallback: bool = True
    charsmap: bytes = b""
    remove_extra_whitespaces: bool = False
    lowercase: bool = True
    strip_accents: bool | None = None
    split_chinese: bool = True


class TokenizerSource(msgspec.Struct, frozen=True):
    """The source of a tokenizer: a directory with its files, or a vocabulary. With neither there is no tokenizer.

    chat_template: Jinja source from the checkpoint, or None.
    named_templates: further templates of the checkpoint by name (`tool_use`, ...).
    """

    directory: str | None = None
    vocabulary: Vocabulary | None = None
    chat_template: str | None = None
    named_templates: dict[str, str] = {}
