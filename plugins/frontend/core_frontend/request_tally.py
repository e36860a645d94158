"""Statistics of the requests of a program's own engine, for `get_metrics`.

Owns: the counts and their buckets. Never does: name or export them (`core_frontend.library.metrics` does), or keep a
request. Called by: the output processor, with every output and every end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from core_frontend.api.outputs import RequestOutput
from core_observers.buckets import FIRST_TOKEN_BUCKETS, LENGTH_BUCKETS, REQUEST_BUCKETS, TOKEN_BUCKETS


class Buckets:
    """A histogram of values.

    bounds: rising; a value belongs to the first bound that is not less than it.
    counts: one per bound, and one for values above all bounds.
    total: sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Add a value to its bucket and to the total."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class RequestTally:
    """The statistics of one engine; times are in seconds.

    num_prompt_tokens, num_output_tokens: of requests that have ended.
    reasons: completions that have ended, by reason.
    gaps: times between two outputs of a request.
    """

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.reasons: Counter[str] = Counter()
        self.gaps = Buckets(TOKEN_BUCKETS)
        self.first_token = Buckets(FIRST_TOKEN_BUCKETS)
        self.per_token = Buckets(TOKEN_BUCKETS)
        self.latency = Buckets(REQUEST_BUCKETS)
        self.queue_time = Buckets(REQUEST_BUCKETS)
        self.prompt_length = Buckets(LENGTH_BUCKETS)
        self.output_length = Buckets(LENGTH_BUCKETS)

    def end(self, output: RequestOutput) -> None:
        """Count a request by its last output."""
        times = output.metrics
        num_tokens = times.num_generation_tokens
        self.num_prompt_tokens += len(output.prompt_token_ids)
        self.num_output_tokens += num_tokens
        self.prompt_length.add(len(output.prompt_token_ids))
        self.output_length.add(num_tokens)
        for completion in output.outputs:
            if completion.finish_reason is not None:
                self.reasons[completion.finish_reason] += 1
        if times.first_scheduled_time > 0.0:
            self.queue_time.add(max(0.0, times.first_scheduled_time - times.arrival_time))
        if times.first_token_time > 0.0:
            self.first_token.add(max(0.0, times.first_token_time - times.arrival_time))
            self.latency.add(max(0.0, times.last_token_time - times.arrival_time))
            num_later = num_tokens - len(output.outputs)
            if num_later > 0:
                decoding = max(0.0, times.last_token_time - times.first_token_time)
                self.per_token.add(decoding * len(output.outputs) / num_later)
