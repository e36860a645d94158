"""Log-probabilities of the tokens of messages, told apart from those of reasoning, calls and markers.

Owns: that distinction. Never does: format them (`LogprobsFormatter` does). Called by: the writer and `OutputItems`.

Tokens come before the events that they complete, so they are kept until it is known what they were.
"""

from __future__ import annotations

from core_apis.logprobs import LogprobsFormatter
from core_apis.protocol.chat import TokenLogprob
from core_frontend.api.outputs import CompletionOutput


class MessageLogprobs:
    """top: alternatives to show at each position."""

    def __init__(self, formatter: LogprobsFormatter, top: int) -> None:
        self._formatter = formatter
        self._top = top
        self._waiting: list[TokenLogprob] = []
        self._num_latest = 0

    def take(self, completion: CompletionOutput) -> None:
        """Keep those of an output, whose events come next."""
        if completion.logprobs:
            news = self._formatter.chat(completion.token_ids, completion.logprobs, self._top).content
            self._waiting += news
            self._num_latest = len(news)

    def drop(self) -> None:
        """What waits was no text; of the latest output, text may follow yet."""
        del self._waiting[: len(self._waiting) - self._num_latest]

    def of(self, text: str, *, begins: bool) -> list[TokenLogprob]:
        """Those of a message's next text. Where the message begins they are the last ones that make it up: before them are
        the markers of whatever came before."""
        taken = _last(self._waiting, len(text.encode())) if begins else self._waiting
        self._waiting = []
        return taken


def _last(entries: list[TokenLogprob], num_bytes: int) -> list[TokenLogprob]:
    """The last entries that have so many bytes together."""
    taken: list[TokenLogprob] = []
    for entry in reversed(entries):
        if num_bytes <= 0:
            break
        num_bytes -= len(entry.bytes)
        taken.insert(0, entry)
    return taken
