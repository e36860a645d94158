"""The answer of /tokenizer_info, under the names of transformers' `tokenizer_config.json`.

Owns: its Structs. Called by: its route.
"""

from __future__ import annotations

import msgspec


class AddedToken(msgspec.Struct):
    """A token in addition to the vocabulary's own.

    single_word, lstrip, rstrip, normalized: how its text is matched.
    special: whether it is a control token, which does not stand for text.
    """

    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """The tokenizer's settings.

    model_max_length, vocab_size: in tokens. tokenizer_class: the class of transformers that reads every fast tokenizer.
    bos_token, eos_token, pad_token, unk_token: their texts; None if there is none.
    added_tokens_decoder: by id.
    """

    tokenizer_class: str = "PreTrainedTokenizerFast"
    model_max_length: int
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    split_special_tokens: bool
    chat_template: str | None
    added_tokens_decoder: dict[str, AddedToken]
