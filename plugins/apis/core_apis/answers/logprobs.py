"""Log probabilities in the three forms that answers use.

Owns: the conversion from the engine's `PositionLogprobs`. Never does: compute them. Called by: the answer writers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core_apis.answers.json_pieces import ENTRIES, batches, joined
from core_apis.context import ServingContext
from core_apis.protocol.chat import ChatLogprobs, TokenLogprob, TopLogprob
from core_apis.protocol.completions import CompletionLogprobs
from core_apis.protocol.sampling import GenerationRequest
from core_frontend.api.outputs import Logprob, PositionLogprobs
from core_tokens.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no infinity


class LogprobsFormatter:
    """The formatter of log probabilities for one answer.

    tokens_as_ids: write tokens as `token_id:N` instead of their text.
    """

    def __init__(self, tokenizer: Tokenizer, tokens_as_ids: bool) -> None:
        self.tokenizer = tokenizer
        self.tokens_as_ids = tokens_as_ids
        self._lists: dict[int, list[int]] = {}

    @classmethod
    def of(cls, context: ServingContext, request: GenerationRequest) -> LogprobsFormatter:
        """Make a formatter with the request's token form, else the server's."""
        as_ids = request.return_tokens_as_token_ids
        if as_ids is None:
            as_ids = context.server.return_tokens_as_token_ids
        # Without a tokenizer no token has a text to show.
        as_ids = as_ids or bool(context.engine.tokenizer.refusal)
        return cls(context.engine.tokenizer, as_ids)

    def completion(
        self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs | None], offsets: list[int]
    ) -> CompletionLogprobs:
        """Return OpenAI's older form. offsets: number of characters of text before each token."""
        result = CompletionLogprobs([], [], [], offsets)
        for token_id, position in zip(token_ids, positions, strict=True):
            logprob: float | None = None
            top: dict[str, float] | None = None
            if position:
                chosen = position.get(token_id)
                if chosen is not None:
                    logprob = _finite(chosen.logprob)
                top = self._by_text(position)
            result.tokens.append(self._piece(token_id))
            result.token_logprobs.append(logprob)
            result.top_logprobs.append(top)
        return result

    def chat(self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs], top: int) -> ChatLogprobs:
        """Return OpenAI's newer form. top: number of alternatives at each position, -1 for all."""
        content: list[TokenLogprob] = []
        for token_id, position in zip(token_ids, positions, strict=True):
            content.append(self._chat_entry(token_id, position, top))
        return ChatLogprobs(content)

    def long_chat(self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs], top: int) -> ChatLogprobs:
        """Return the form of `chat`, written piece by piece if it is long: only the entries of one piece exist at a
        time.
        """
        if len(token_ids) <= ENTRIES:
            return self.chat(token_ids, positions, top)
        some = zip(batches(token_ids), batches(positions), strict=True)
        return ChatLogprobs(joined(self.chat(ids, own, top).content for ids, own in some))

    def prompt(self, positions: Sequence[PositionLogprobs | None]) -> Any:
        """Return vLLM's form for prompts: null, then {token id: {logprob, rank, decoded_token}} for each token."""
        return joined([position and self._by_id(position) for position in some] for some in batches(positions))

    def _chat_entry(self, token_id: int, position: PositionLogprobs, top: int) -> TokenLogprob:
        chosen = position.get(token_id, Logprob(LOWEST))
        return TokenLogprob(
            token=self._text(token_id, chosen),
            logprob=_finite(chosen.logprob),
            bytes=self._bytes(token_id),
            top_logprobs=self._alternatives(position, top),
        )

    def _alternatives(self, position: PositionLogprobs, top: int) -> list[TopLogprob]:
        if top == 0:
            return []
        ranked = sorted(position.items(), key=lambda item: -item[1].logprob)
        if top > 0:
            ranked = ranked[:top]
        shown: list[TopLogprob] = []
        for token_id, entry in ranked:
            text = self._text(token_id, entry)
            shown.append(TopLogprob(text, _finite(entry.logprob), self._bytes(token_id)))
        return shown

    def _by_id(self, position: PositionLogprobs) -> dict[str, dict[str, Any]]:
        result: dict[str, dict[str, Any]] = {}
        for token_id, entry in position.items():
            result[str(token_id)] = {
                "logprob": _finite(entry.logprob),
                "rank": entry.rank,
                "decoded_token": self._text(token_id, entry),
            }
        return result

    def _by_text(self, position: PositionLogprobs) -> dict[str, float]:
        result: dict[str, float] = {}
        for token_id, entry in position.items():
            piece = self._piece(token_id)
            result.setdefault(piece, _finite(entry.logprob))
        return result

    def _piece(self, token_id: int) -> str:
        """Return a token's text.

        A part of a character is written as its bytes, so that different parts stay different.
        """
        if self.tokens_as_ids:
            return f"token_id:{token_id}"
        data = self.tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            escaped = [f"\\x{byte:02x}" for byte in data]
            return "bytes:" + "".join(escaped)

    def _text(self, token_id: int, entry: Logprob | None) -> str:
        if self.tokens_as_ids:
            return f"token_id:{token_id}"
        if entry is not None and entry.decoded_token is not None:
            return entry.decoded_token
        return self.tokenizer.token_text(token_id)

    def _bytes(self, token_id: int) -> list[int]:
        """Return the bytes of a token, the same list object each time."""
        known = self._lists.get(token_id)
        if known is None:
            known = self._lists[token_id] = list(self.tokenizer.token_bytes(token_id))
        return known


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
