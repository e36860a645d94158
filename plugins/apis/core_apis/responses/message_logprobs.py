"""Log probabilities of the tokens of messages, separated from those of reasoning, calls and markers.

Owns: that distinction. Never does: format them (`LogprobsFormatter` does). Called by: the writer and `OutputItems`.

Tokens arrive before the events that they complete, so they are kept until their kind is known.
"""

from __future__ import annotations

from core_apis.answers.logprobs import LogprobsFormatter
from core_apis.protocol.chat import TokenLogprob
from core_frontend.api.outputs import CompletionOutput


class MessageLogprobs:
    """The log probabilities of one response's messages. top: alternatives to show at each position."""

    def __init__(self, formatter: LogprobsFormatter, top: int) -> None:
        self._formatter = formatter
        self._top = top
        self._waiting: list[TokenLogprob] = []
        self._num_latest = 0

    def take(self, completion: CompletionOutput) -> None:
        """Hold the log probabilities of an output whose events come next."""
        if completion.logprobs:
            news = self._formatter.chat(completion.token_ids, completion.logprobs, self._top).content
            self._waiting += news
            self._num_latest = len(news)

    def drop(self) -> None:
        """Drop the waiting entries, which were no text, except those of the latest output, whose text may still follow."""
        del self._waiting[: len(self._waiting) - self._num_latest]

    def of(self, text: str, *, begins: bool) -> list[TokenLogprob]:
        """Return the entries of a message's next text.

        When a message begins, they are the last ones that add up to the text: the entries before them are markers of
        the preceding part.
        """
        taken = _last(self._waiting, len(text.encode())) if begins else self._waiting
        self._waiting = []
        return taken


def _last(entries: list[TokenLogprob], num_bytes: int) -> list[TokenLogprob]:
    """Return the last entries that have `num_bytes` bytes together."""
    taken: list[TokenLogprob] = []
    for entry in reversed(entries):
        if num_bytes <= 0:
            break
        num_bytes -= len(entry.bytes)
        taken.insert(0, entry)
    return taken
