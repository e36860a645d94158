"""Incremental detokenization of generated tokens.

Owns: the decision which text can already be released. Never does: look for stop strings.
Called by: the engine's output processing.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from tokenizers.decoders import DecodeStream

from core_tokens.tokenizer import Tokenizer

Span = tuple[int, int]
"""Start and end of a part of a text, in characters."""

MAX_CONTEXT_TOKENS = 16
FIRST_CONTINUATION = 0x80
"""UTF-8: bytes below this are whole characters, bytes from here to 0xBF continue one, ..."""
FIRST_LEADING = 0xC0
"""... and the remaining bytes start a character of several bytes."""


class IncrementalDetokenizer:
    """Releases whole characters only; everything released, joined, is the decoding of all tokens. Constant work per
    token.

    prompt_token_ids: the text continues the prompt's: a character that its last tokens began is completed.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._stream: DecodeStream | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = tokenizer.strips_space
        self._held: list[int] = []
        context = list(prompt_token_ids[-MAX_CONTEXT_TOKENS:])
        if tokenizer.spelling == "other":
            self._stream = DecodeStream(ids=context, skip_special_tokens=skip_special_tokens)
        else:
            begun = tokenizer.join_bytes(context, skip_special_tokens)
            self._at_start = self._at_start and not begun
            self._decoder.decode(_unfinished(begun))

    def push(self, ids: Iterable[int]) -> str:
        """Add tokens; returns the text that they complete, possibly empty."""
        if self._stream is not None:
            return "".join([self._step(index) for index in ids])
        data = self._tokenizer.join_bytes(ids, self._skip)
        return self._trimmed(self._decoder.decode(data))

    def flush(self) -> str:
        """Finish; returns the rest of an incomplete character, as U+FFFD."""
        if self._stream is not None:
            held = self._held
            self._held = []
            return self._tokenizer.decode(held, self._skip) if held else ""
        return self._trimmed(self._decoder.decode(b"", final=True))

    def _trimmed(self, text: str) -> str:
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text

    def _step(self, index: int) -> str:
        """Pass one token through the library's stream, for decoders whose tokens do not stand for bytes."""
        assert self._stream is not None
        text = self._stream.step(self._tokenizer.backend, index)
        if text is None:
            self._held.append(index)
            return ""
        self._held.clear()
        return text


class MarkingDetokenizer(IncrementalDetokenizer):
    """Keeps special tokens in the text, and records the positions of all tokens.

    specials: start and end of each special token, in characters of all released text.
    ends: characters released up to each token.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int] = ()) -> None:
        super().__init__(tokenizer, prompt_token_ids, skip_special_tokens=False)
        self.specials: list[Span] = []
        self.ends: list[int] = []
        self._size = 0

    def push(self, ids: Iterable[int]) -> str:
        """Add tokens as the base class does, and record their positions."""
        pieces: list[str] = []
        for index in ids:
            piece = super().push([index])
            pieces.append(piece)
            self._size += len(piece)
            self.ends.append(self._size)
            if index in self._tokenizer.special_ids:
                # The rest of an incomplete character is released with it, before it.
                spelling = self._tokenizer.token_text(index)
                length = min(len(spelling), len(piece))
                self.specials.append((self._size - length, self._size))
        return "".join(pieces)


def _unfinished(data: bytes) -> bytes:
    """Return the last bytes of `data` that begin a character without completing it (at most three)."""
    longest = min(3, len(data))
    for size in range(1, longest + 1):
        byte = data[-size]
        if byte < FIRST_CONTINUATION:
            return b""
        if byte >= FIRST_LEADING:
            return data[-size:] if size < _character_size(byte) else b""
    return b""


def _character_size(leading: int) -> int:
    """Return the size in bytes of the character that begins with this byte, which is not ASCII."""
    if leading < 0xE0:
        return 2
    if leading < 0xF0:
        return 3
    return 4
