"""The contract of tokenizers that are plugins: from text to token ids, and from a token to its bytes.

Owns: `TextTokenizer`, its optional part, and `Ends`. Never does: encode. Called by: plugins of kind `tokenizer` (implement
it), `core_tokens.plugged` (calls it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Ends(NamedTuple):
    """The control tokens around a text, or around two texts that are read as one sequence.

    between:     tokens between the first and the second text; None: the tokenizer has no form of pairs.
    second_type: type id of the second text's tokens; those of the first one are 0.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] | None = None
    second_type: int = 0


class TextTokenizer(Protocol):
    """Kind `tokenizer`: the tokens of texts. One object is called by several threads at once.

    `core_load` finds in `context.options` `directory`: the directory (or file) of `--tokenizer`, else the checkpoint's; None
    where the checkpoint has neither.

    identity:      digest of everything besides a text that its tokens depend on, such as files and versions.
    vocab_size:    number of ids; all ids are below it.
    control:       ids of control tokens by their spelling. `encode` never returns one: the engine finds their spellings
                   where they are allowed, and passes the texts between them.
    named:         ids of `bos_token`, `eos_token`, `pad_token` and `unk_token`, where there are such.
    ends:          the control tokens around a text.
    strips_space:  whether the first space of an answer belongs to the tokenizer, which writes one before each text.
    chat_template: Jinja source; None: the checkpoint's own.
    """

    identity: str
    vocab_size: int
    control: Mapping[str, int]
    named: Mapping[str, int]
    ends: Ends
    strips_space: bool
    chat_template: str | None

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of a text without control tokens. Raises RequestError for a text that it cannot take."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, possibly part of a character; b'' for an id without text.

        The bytes of an answer's tokens, joined, are its text. Called once for each id, before the first request.
        """
        ...


class HasSpans(Protocol):
    """The optional part of a tokenizer that changes texts (cases, accents), so that the bytes of their tokens are others."""

    def spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Return for each token of `encode` the index of its first character and of the one after its last."""
        ...
