"""Prometheus metrics of a server: vLLM's names under the prefix `core:`.

Owns: the registry, histograms and counters of requests, the view of the scheduler's state. Never does: HTTP, or keep
module-level collectors (each server has a registry of its own). Called by: the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from core.api.config import CacheConfig
from core.api.messages import SchedulerStats
from core.api.outputs import RequestOutput
from core.api.sampling_params import SamplingParams
from core.observe import draft_metrics, kv_metrics
from core.observe.recent_requests import RecentRequest
from core.observe.shared_metrics import AskOthers, families, merged, page

PREFIX = "core:"
FINISH_REASONS = ("stop", "length", "abort", "error", "timeout")

FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80, 160)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
REQUEST_BUCKETS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
RECOVERY_BUCKETS = (0.1, 0.25, 0.5, 1, 1.5, 2, 2.5, 5, 10, 20, 40, 80, 160, 320)
LENGTH_BUCKETS = tuple(factor * 10**power for power in range(6) for factor in (1, 2, 5))
N_BUCKETS = (1, 2, 5, 10, 20)

GAUGES = {
    "num_requests_running": ("num_running", "Requests in the batch."),
    "num_requests_waiting": ("num_waiting", "Requests waiting for the batch."),
    "kv_cache_usage_perc": ("kv_cache_usage", "Fraction of KV blocks in use; 1 is all of them."),
}
COUNTERS = {
    "prefix_cache_queries": ("prefix_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_hits", "Prompt tokens found in the prefix cache."),
    "external_prefix_cache_hits": ("tier_hits", "Prompt tokens whose KV came back from host memory or disk."),
    "kv_blocks_saved": ("tier_saved", "KV blocks saved to host memory or disk."),
    "num_preemptions": ("num_preemptions", "Preemptions."),
    "request_timeouts": ("num_timeouts", "Requests ended by their deadline."),
    "stalled_tokens": ("num_stalls", "Tokens that streams waited for longer than --max-stall-ms."),
    "failed_steps": ("num_failed_steps", "Steps that failed; their requests were tried again one by one."),
    "integrity_violations": ("num_violations", "Broken invariants of the scheduler that were met and mended."),
    "spec_decode_num_drafts": ("spec_num_drafts", "Drafts verified."),
    "spec_decode_num_draft_tokens": ("spec_num_draft_tokens", "Draft tokens verified."),
    "spec_decode_num_accepted_tokens": ("spec_num_accepted_tokens", "Draft tokens accepted."),
}


class ServerMetrics:
    """All metrics of one server, labelled with its model's name.

    registry: of what this process counts; the scheduler's state comes before it.
    stats: gives the scheduler's latest state, read at each scrape.
    cache: reported as `core:cache_config_info`.
    restarts: engines that were started because one had died, by cause.
    """

    def __init__(
        self,
        model_name: str,
        stats: Callable[[], SchedulerStats],
        cache: CacheConfig | None = None,
        restarts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.registry = CollectorRegistry()
        self.model_name = model_name
        self._scheduler = _SchedulerCollector(model_name, stats, cache)
        self._number = 0
        self._ask_others: AskOthers | None = None
        self.registry.register(_RestartCollector(model_name, restarts))
        self.recovery = self._histogram(
            "engine_recovery_seconds", "Pauses between the death of an engine and the next.", RECOVERY_BUCKETS
        )
        ProcessCollector(registry=self.registry)
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that began to run.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        success = Counter(
            PREFIX + "request_success",
            "Completions that ended.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        self.success = {reason: success.labels(model_name, reason) for reason in FINISH_REASONS}
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", FIRST_TOKEN_BUCKETS
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Between consecutive outputs of a streamed request.", TOKEN_BUCKETS
        )
        self.per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time per token after the first, one a request.",
            TOKEN_BUCKETS,
        )
        self.latency = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", REQUEST_BUCKETS)
        self.decode_time = self._histogram("request_decode_time_seconds", "First to last token.", REQUEST_BUCKETS)
        self.prompt_length = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", LENGTH_BUCKETS)
        self.output_length = self._histogram(
            "request_generation_tokens", "Tokens generated for a request.", LENGTH_BUCKETS
        )
        self.params_n = self._histogram("request_params_n", "The n of a request.", N_BUCKETS)
        self.params_max_tokens = self._histogram(
            "request_params_max_tokens", "The max_tokens of a request.", LENGTH_BUCKETS
        )

    def share(self, number: int, ask_others: AskOthers) -> None:
        """From now on this is process `number` of several, whose metrics are on the page, too."""
        self._number = number
        self._ask_others = ask_others

    async def render(self) -> bytes:
        """The state in Prometheus' text format."""
        if self._ask_others is None:
            return page(self._scheduler.collect(), self.registry.collect())
        others = await self._ask_others()
        own = {**others, self._number: families(self.registry.collect())}
        return page(self._scheduler.collect(), merged(own))

    def _counter(self, name: str, text: str) -> Counter:
        family = Counter(PREFIX + name, text, ("model_name",), registry=self.registry)
        return family.labels(self.model_name)

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        family = Histogram(PREFIX + name, text, ("model_name",), registry=self.registry, buckets=tuple(buckets))
        return family.labels(self.model_name)


class RequestMeter:
    """Follows one request to its end. Feed every output (or `refuse` it), then call `close`.

    entry: where people look for it.
    """

    def __init__(self, metrics: ServerMetrics, params: SamplingParams, entry: RecentRequest) -> None:
        self.metrics = metrics
        self.entry = entry
        self.params = params
        self.num_tokens = 0
        self.last_output = 0.0
        self.finished = False
        self._ended: set[int] = set()

    def update(self, output: RequestOutput) -> None:
        """Count `output`, a delta or the final one."""
        now = time.monotonic()
        metrics = self.metrics
        new_tokens = sum(len(completion.token_ids) for completion in output.outputs)
        if self.last_output == 0.0:
            metrics.prompt_tokens.inc(len(output.prompt_token_ids))
            self.entry.first_token = output.metrics.first_token_time or None
            self.entry.num_prompt_tokens = len(output.prompt_token_ids)
            self.entry.num_cached_tokens = output.num_cached_tokens
            times = output.metrics
            if times.first_token_time > 0.0:
                waited = times.first_token_time - times.arrival_time
                metrics.first_token.observe(max(0.0, waited))
        elif new_tokens:
            metrics.inter_token.observe(now - self.last_output)
        self.last_output = now
        self.num_tokens += new_tokens
        self.entry.num_tokens = self.num_tokens
        if new_tokens:
            metrics.generation_tokens.inc(new_tokens)
        for completion in output.outputs:
            if completion.finish_reason is not None and completion.index not in self._ended:
                self._ended.add(completion.index)
                metrics.success[completion.finish_reason].inc()
        if output.finished:
            self._finish(output)

    def refuse(self) -> None:
        """The request never ran, so `close` counts nothing."""
        self.finished = True
        self.entry.close("refused")

    def close(self) -> None:
        """The request is over; completions that have not ended by themselves were aborted."""
        if not self.finished:
            num_aborted = self.params.n - len(self._ended)
            self.metrics.success["abort"].inc(num_aborted)
        self.entry.close("abort")

    def _finish(self, output: RequestOutput) -> None:
        self.finished = True
        reasons = [completion.finish_reason for completion in output.outputs]
        self.entry.close(reasons[0] or "stop")
        metrics = self.metrics
        times = output.metrics
        n = self.params.n
        metrics.prompt_length.observe(len(output.prompt_token_ids))
        metrics.output_length.observe(self.num_tokens)
        metrics.params_n.observe(n)
        if self.params.max_tokens is not None:
            metrics.params_max_tokens.observe(self.params.max_tokens)
        if times.first_token_time > 0.0 and times.last_token_time > 0.0:
            latency = times.last_token_time - times.arrival_time
            metrics.latency.observe(max(0.0, latency))
            decoding = max(0.0, times.last_token_time - times.first_token_time)
            metrics.decode_time.observe(decoding)
            if self.num_tokens > n:
                later_tokens = self.num_tokens - n  # each of the n completions has one first token
                metrics.per_token.observe(decoding * n / later_tokens)


class _RestartCollector(Collector):
    """Turns the log of restarts into a metric at each scrape."""

    def __init__(self, model_name: str, restarts: Mapping[str, int]) -> None:
        self.model_name = model_name
        self.restarts = restarts

    def collect(self) -> Iterable[Metric]:
        text = "Engines that were started because one had died, by cause."
        counter = CounterMetricFamily(PREFIX + "engine_restarts", text, labels=("model_name", "cause"))
        for cause, count in sorted(self.restarts.items()):
            counter.add_metric((self.model_name, cause), count)
        yield counter


class _SchedulerCollector(Collector):
    """Turns the scheduler's state into metrics at each scrape, so that a step costs nothing."""

    def __init__(self, model_name: str, stats: Callable[[], SchedulerStats], cache: CacheConfig | None) -> None:
        self.model_name = model_name
        self.stats = stats
        self.cache = cache

    def collect(self) -> Iterable[Metric]:
        stats = self.stats()
        for name, (source, text) in GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=("model_name",))
            gauge.add_metric((self.model_name,), getattr(stats, source))
            yield gauge
        for name, (source, text) in COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, text, labels=("model_name",))
            counter.add_metric((self.model_name,), getattr(stats, source))
            yield counter
        yield from draft_metrics.drafts(PREFIX, self.model_name, stats)
        yield from kv_metrics.residency(PREFIX, self.model_name, stats.kv_residency)
        if self.cache is not None:
            yield kv_metrics.cache_info(PREFIX, self.model_name, self.cache)
