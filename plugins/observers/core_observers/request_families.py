"""Metrics of requests: their tokens, how they end, their times and their sizes.

Owns: names and texts of these. Never does: count (meters do). Called by: `ServerMetrics`, which has one of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Histogram

from core_observers.buckets import FIRST_TOKEN_BUCKETS, LENGTH_BUCKETS, N_BUCKETS, REQUEST_BUCKETS, TOKEN_BUCKETS

FINISH_REASONS = ("stop", "length", "abort", "error", "timeout")
TOKEN_SOURCES = ("local_compute", "local_cache_hit")


BUCKETS: Mapping[str, Sequence[float]] = MappingProxyType(
    {
        "time_to_first_token": FIRST_TOKEN_BUCKETS,
        "inter_token_latency": TOKEN_BUCKETS,
        "request_latency": REQUEST_BUCKETS,
        "request_tokens": LENGTH_BUCKETS,
        "request_params_n": N_BUCKETS,
    }
)
"""Bucket bounds by what they measure, under the names of --custom-histogram-buckets."""


class Families:
    """The factory of metrics in a registry, each labelled with the model's name.

    prefix: of their names. buckets: bounds that replace those of `BUCKETS`.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        prefix: str,
        model_name: str,
        buckets: Mapping[str, Sequence[float]] = MappingProxyType({}),
    ) -> None:
        self._registry = registry
        self._prefix = prefix
        self._model_name = model_name
        self._buckets = {**BUCKETS, **buckets}

    def counter(self, name: str, text: str) -> Counter:
        """Make a counter, which only grows."""
        family = Counter(self._prefix + name, text, ("model_name",), registry=self._registry)
        return family.labels(self._model_name)

    def counters(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        """Make a family with a counter for each value of a label."""
        family = Counter(self._prefix + name, text, ("model_name", label), registry=self._registry)
        return {value: family.labels(self._model_name, value) for value in values}

    def histogram(self, name: str, text: str, buckets: str | Sequence[float]) -> Histogram:
        """Make a histogram. buckets: its bounds, or the name of what it measures."""
        if isinstance(buckets, str):
            buckets = self._buckets[buckets]
        family = Histogram(self._prefix + name, text, ("model_name",), registry=self._registry, buckets=tuple(buckets))
        return family.labels(self._model_name)


class TokenCounts:
    """Counters of prompt tokens, also by the source of their keys and values, and of answer tokens."""

    def __init__(self, families: Families) -> None:
        self.prompt = families.counter("prompt_tokens", "Prompt tokens of requests that began to run.")
        self.cached = families.counter("prompt_tokens_cached", "Prompt tokens that came from the prefix cache.")
        self.by_source = families.counters(
            "prompt_tokens_by_source",
            "Prompt tokens by where their keys and values came from.",
            "source",
            TOKEN_SOURCES,
        )
        self.generated = families.counter("generation_tokens", "Tokens generated.")


class RequestTimes:
    """Histograms of seconds: the latencies that clients see, and the phases of a request."""

    def __init__(self, families: Families) -> None:
        histogram = families.histogram
        self.first_token = histogram("time_to_first_token_seconds", "Arrival to first token.", "time_to_first_token")
        self.inter_token = histogram(
            "inter_token_latency_seconds", "Between consecutive outputs of a streamed request.", "inter_token_latency"
        )
        self.per_token = histogram(
            "request_time_per_output_token_seconds",
            "Mean time per token after the first, one a request.",
            "inter_token_latency",
        )
        self.whole = histogram("e2e_request_latency_seconds", "Arrival to last token.", "request_latency")
        self.decode = histogram("request_decode_time_seconds", "First to last token.", "request_latency")
        self.queue = histogram(
            "request_queue_time_seconds", "Arrival until the prompt begins to be computed.", "request_latency"
        )
        self.prefill = histogram(
            "request_prefill_time_seconds", "The prompt's beginning to the first token.", "request_latency"
        )
        self.inference = histogram(
            "request_inference_time_seconds", "The prompt's beginning to the last token.", "request_latency"
        )


class RequestSizes:
    """Histograms of a request's tokens, and of its parameters."""

    def __init__(self, families: Families) -> None:
        histogram = families.histogram
        self.prompt = histogram("request_prompt_tokens", "Prompt tokens of a request.", "request_tokens")
        self.generated = histogram("request_generation_tokens", "Tokens generated for a request.", "request_tokens")
        self.computed = histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens of a request that were not cached.", "request_tokens"
        )
        self.longest = histogram(
            "request_max_num_generation_tokens", "Tokens of a request's longest completion.", "request_tokens"
        )
        self.n = histogram("request_params_n", "The n of a request.", "request_params_n")
        self.max_tokens = histogram("request_params_max_tokens", "The max_tokens of a request.", "request_tokens")
