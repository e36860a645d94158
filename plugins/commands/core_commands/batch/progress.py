"""Progress of a batch: a bar in a terminal, an occasional line elsewhere.

Owns: the output on standard error. Never does: count results for other modules. Called by: `core run-batch`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec

from core_apis.batches.results import BatchResult

LINE_SECONDS = 30.0


class _Usage(msgspec.Struct):
    completion_tokens: int | None = 0
    output_tokens: int | None = 0

    @property
    def num_output(self) -> int:
        """Return the output tokens, under either field name."""
        return (self.completion_tokens or 0) + (self.output_tokens or 0)


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


class BatchProgress:
    """Progress output of one run. total: requests. done: requests finished by an earlier run."""

    def __init__(self, total: int, done: int) -> None:
        self._total = total
        self._done = done
        self._begun_with = done
        self._tokens = 0
        self._errors = 0
        self._begin = time.monotonic()
        self._told = self._begin
        self._bar: Any = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=done, unit="request", dynamic_ncols=True)

    def advance(self, result: BatchResult) -> None:
        """Count one more result."""
        self._done += 1
        if result.response is not None and result.response.status_code == 200:
            self._tokens += _output_tokens(result.response.body)
        else:
            self._errors += 1
        now = time.monotonic()
        if self._bar is not None:
            self._bar.set_postfix_str(self._tokens_and_errors(now), refresh=False)
            self._bar.update(1)
        elif now - self._told >= LINE_SECONDS:
            self._told = now
            speed = (self._done - self._begun_with) / self._seconds(now)
            text = f"{self._done} of {self._total} requests, {speed:.2f} requests/s, {self._tokens_and_errors(now)}"
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Finish the bar."""
        if self._bar is not None:
            self._bar.close()

    def _tokens_and_errors(self, now: float) -> str:
        text = f"{self._tokens / self._seconds(now):.1f} output tokens/s"
        return text + (f", {self._errors} errors" if self._errors else "")

    def _seconds(self, now: float) -> float:
        """Return the seconds since this run began."""
        return max(now - self._begin, 1e-9)


def _output_tokens(body: msgspec.Raw) -> int:
    """Return the output tokens that an answer reports, or 0."""
    try:
        usage = msgspec.json.decode(body, type=_Answer).usage
    except msgspec.DecodeError:
        return 0  # another server's own format
    return 0 if usage is None else usage.num_output
