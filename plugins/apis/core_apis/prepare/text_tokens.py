"""Tokenization of texts in requests, within limits.

Owns: the limit of a text's length, checked before any work, and that of a prompt in tokens. Never does: render
conversations, or tell control from text (`core_tokens.content_encoding` does). Called by: `core_apis.prepare.preparation`.
"""

from __future__ import annotations

from core.api.errors import RequestError
from core_tokens.content_encoding import ContentEncoder, Encoded
from core_tokens.tokenizer import Tokenizer

SHORT_TEXT = 16_384
"""Number of characters up to which a text is tokenized without a check against the longest token, whose search takes
the tokenizer a while.
"""
SPARE_TOKENS = 64
"""Tokens by which a text may be longer than the context: at the cut of a truncated text, the first tokens differ."""


class TextTokens:
    """The tokenizer of texts, with the limits of one server.

    max_model_len: tokens that the context holds. most: how many of them a prompt may fill. contents: encodes prompts
        that a template has rendered; every other text may hold control tokens.
    """

    def __init__(self, tokenizer: Tokenizer, contents: ContentEncoder, max_model_len: int, most: int) -> None:
        self.tokenizer = tokenizer
        self.contents = contents
        self.max_model_len = max_model_len
        self.most = most

    def prompt(self, text: str, add_special_tokens: bool, keep: int | None) -> list[int]:
        """Return the token ids of a prompt that fits the context, or of which only the last `keep` tokens will be used.

        keep: -1: as many as fit. Raises RequestError.
        """
        if keep is not None:
            text = self._last_part(text)
        return self.fitting(self.encode(text, add_special_tokens), keep)

    def rendered_prompt(self, text: str, add_special_tokens: bool, keep: int | None) -> Encoded:
        """Encode a text that a template has rendered, with the limits of `prompt`."""
        if keep is not None:
            text = self._last_part(text)
        encoded = self.rendered(text, add_special_tokens)
        return encoded._replace(ids=self.fitting(encoded.ids, keep))

    def rendered(self, text: str, add_special_tokens: bool) -> Encoded:
        """Encode a text that a template has rendered, with the checks of `encode`."""
        self.check_size(text)
        return self.contents.encoded(text, add_special_tokens)

    def fitting(self, ids: list[int], keep: int | None) -> list[int]:
        """Return `ids`; if only the last `keep` will be used, as many of the last ones as the context could hold.

        Raises RequestError if they do not fit.
        """
        if keep is not None:
            return ids[-self.max_model_len :]
        if len(ids) > self.most:
            raise self._too_long(f"has {len(ids)} tokens")
        return ids

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text. Raises RequestError if it cannot fit the context, whatever its tokens."""
        self.check_size(text)
        return self.tokenizer.encode(text, add_special_tokens)

    def check_size(self, text: str) -> None:
        """Raise RequestError for a text that cannot fit the context, whatever its tokens."""
        if len(text) > SHORT_TEXT and len(text) > self._most_characters():
            raise self._too_long(f"has {len(text)} characters, more than any {self.max_model_len} tokens stand for")

    def first_tokens(self, text: str, count: int) -> str:
        """Return the text of the first `count` tokens."""
        ids = self.tokenizer.encode(self.first_part(text), add_special_tokens=False)
        return text if len(ids) <= count else self.tokenizer.decode(ids[:count])

    def first_part(self, text: str) -> str:
        """Return as much of the text's start as the context could hold at most."""
        if len(text) <= SHORT_TEXT:
            return text
        return text[: self._most_characters()]

    def _last_part(self, text: str) -> str:
        """Return as much of the text's end as the context could hold at most."""
        if len(text) <= SHORT_TEXT:
            return text
        return text[-self._most_characters() :]

    def _most_characters(self) -> int:
        return (self.max_model_len + SPARE_TOKENS) * self.tokenizer.longest_token

    def _too_long(self, what: str) -> RequestError:
        limit = self.max_model_len
        reason = "" if self.most == limit else f": the context holds {limit}, one of them for output"
        return RequestError(
            f"The prompt {what}, but at most {self.most} tokens fit{reason}. Shorten the prompt, set truncate_prompt_tokens, "
            "or raise --max-model-len.",
            param="prompt",
            code="context_length_exceeded",
        )
