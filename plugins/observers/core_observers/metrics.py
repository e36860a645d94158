"""Prometheus metrics of a server: vLLM's names under the prefix `core:`.

Owns: the registry, the view of the scheduler's state, the page. Never does: HTTP, or keep module-level collectors (each server
has a registry of its own). Called by: the server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from core.api.config import CacheConfig
from core.api.stats import SchedulerStats
from core_observers.families import (
    audit_metrics,
    draft_metrics,
    kv_metrics,
    lifecycle_metrics,
    recording_metrics,
    step_metrics,
    work_metrics,
)
from core_observers.families.adapter_metrics import AdapterCollector, AdapterUse
from core_observers.hidden_names import hidden_since, version_of
from core_observers.request_families import FINISH_REASONS, Families, RequestSizes, RequestTimes, TokenCounts
from core_observers.shared_metrics import AskOthers, merged, page
from core_observers.shared_metrics import families as as_messages
from core_observers.vllm_names import with_vllm_names
from core_observers.work import WorkOf

PREFIX = "core:"
RECOVERY_BUCKETS = (0.1, 0.25, 0.5, 1, 1.5, 2, 2.5, 5, 10, 20, 40, 80, 160, 320)

GAUGES = {
    "num_requests_running": ("num_running", "Requests in the batch."),
    "num_requests_waiting": ("num_waiting", "Requests waiting for the batch."),
    "kv_cache_usage_perc": ("kv_cache_usage", "Fraction of KV blocks in use; 1 is all of them."),
    "expert_balance": (
        "expert_balance",
        "Mean share of ranks in the choices of experts over the highest one; 0 is unknown.",
    ),
}
COUNTERS = {
    "prefix_cache_queries": ("prefix_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_hits", "Prompt tokens found in the prefix cache."),
    "external_prefix_cache_queries": ("tier_queries", "Prompt tokens looked up in host memory or on disk."),
    "external_prefix_cache_hits": ("tier_hits", "Prompt tokens whose KV came back from host memory or disk."),
    "kv_blocks_saved": ("tier_saved", "KV blocks saved to host memory or disk."),
    "num_preemptions": ("num_preemptions", "Preemptions."),
    "request_timeouts": ("num_timeouts", "Requests ended by their deadline."),
    "stalled_tokens": ("num_stalls", "Tokens that streams waited for longer than --max-stall-ms."),
    "failed_steps": ("num_failed_steps", "Steps that failed; their requests were tried again one by one."),
    "integrity_violations": ("num_violations", "Broken invariants of the scheduler that were met and mended."),
    "expert_moves": ("expert_moves", "Experts that a rank got from the files in place of another (--enable-eplb)."),
    "spec_decode_num_drafts": ("spec_num_drafts", "Drafts verified."),
    "spec_decode_num_draft_tokens": ("spec_num_draft_tokens", "Draft tokens verified."),
    "spec_decode_num_accepted_tokens": ("spec_num_accepted_tokens", "Draft tokens accepted."),
}


class ServerMetrics:
    """All metrics of one server, labelled with its model's name.

    registry: holds what this process counts; on the page, the scheduler's state comes before it.
    tokens, times, sizes: of requests. ends: completions by how they ended. recovery: pauses after the death of an
        engine.
    stats: returns the scheduler's latest state, read at each scrape.
    cache: reported as `core:cache_config_info`.
    restarts: engines that were started because one had died, by cause.
    vllm_names: whether each metric also has vLLM's name.
    hidden_version: version since which names that vLLM has hidden are among these; None: they are not.
    adapters: says which adapters are in use; None: there are none.
    engines: returns the state of each engine of a group, which the label `engine` then names; None: there is one.
    work_of: estimates the work of steps; None: it is not estimated.
    buckets: bounds of histograms that replace the usual ones, see `core_observers.request_families.BUCKETS`.
    """

    def __init__(
        self,
        model_name: str,
        stats: Callable[[], SchedulerStats],
        cache: CacheConfig | None = None,
        restarts: Mapping[str, int] = MappingProxyType({}),
        *,
        vllm_names: bool = False,
        hidden_version: str | None = None,
        adapters: AdapterUse | None = None,
        engines: Callable[[], Sequence[SchedulerStats]] | None = None,
        buckets: Mapping[str, Sequence[float]] = MappingProxyType({}),
        work_of: WorkOf | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._vllm_names = vllm_names
        self._hidden = {} if hidden_version is None else hidden_since(version_of(hidden_version))
        self._scheduler: Collector = _SchedulerCollector(model_name, stats, cache, work_of)
        if engines is not None:
            self._scheduler = _GroupCollector(model_name, engines, cache, work_of)
        self._number = 0
        self._ask_others: AskOthers | None = None
        families = Families(self.registry, PREFIX, model_name, buckets)
        self.registry.register(_RestartCollector(model_name, restarts))
        self.recovery = families.histogram(
            "engine_recovery_seconds", "Pauses between the death of an engine and the next.", RECOVERY_BUCKETS
        )
        ProcessCollector(registry=self.registry)
        if adapters is not None:
            self.registry.register(AdapterCollector(PREFIX, model_name, adapters))
        self.tokens = TokenCounts(families)
        self.ends = families.counters("request_success", "Completions that ended.", "finished_reason", FINISH_REASONS)
        self.times = RequestTimes(families)
        self.sizes = RequestSizes(families)

    def share(self, number: int, ask_others: AskOthers) -> None:
        """Make this process number `number` of several; from now on the page includes the metrics of the others."""
        self._number = number
        self._ask_others = ask_others

    async def render(self) -> bytes:
        """Return the state in Prometheus' text format."""
        counted = self.registry.collect()
        if self._ask_others is not None:
            others = await self._ask_others()
            counted = merged({**others, self._number: as_messages(counted)})
        metrics: Iterable[Metric] = itertools.chain(self._scheduler.collect(), counted)
        if self._vllm_names:
            metrics = with_vllm_names(metrics, PREFIX, self._hidden)
        return page(metrics)


class _RestartCollector(Collector):
    """A collector that turns the log of restarts into a metric at each scrape."""

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
    """A collector that turns the scheduler's state into metrics at each scrape, so that a step costs nothing."""

    def __init__(
        self,
        model_name: str,
        stats: Callable[[], SchedulerStats],
        cache: CacheConfig | None,
        work_of: WorkOf | None,
    ) -> None:
        self.model_name = model_name
        self.stats = stats
        self.cache = cache
        self.work_of = work_of

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
        yield from step_metrics.waiting(PREFIX, self.model_name, stats)
        yield from step_metrics.sizes(PREFIX, self.model_name, stats.step_sizes)
        yield from lifecycle_metrics.lifecycle(PREFIX, self.model_name, stats)
        yield from draft_metrics.drafts(PREFIX, self.model_name, stats)
        yield from audit_metrics.audits(PREFIX, self.model_name, stats.audits)
        yield from work_metrics.work(PREFIX, self.model_name, stats.work, self.work_of)
        yield from recording_metrics.recordings(PREFIX, self.model_name, stats.work)
        yield from kv_metrics.handoffs(PREFIX, self.model_name, stats)
        yield from kv_metrics.residency(PREFIX, self.model_name, stats.kv_residency)
        if self.cache is not None:
            yield kv_metrics.cache_info(PREFIX, self.model_name, self.cache)


class _GroupCollector(Collector):
    """A collector of the state of several engines: the samples of each have its number as label `engine`."""

    def __init__(
        self,
        model_name: str,
        engines: Callable[[], Sequence[SchedulerStats]],
        cache: CacheConfig | None,
        work_of: WorkOf | None,
    ) -> None:
        self.model_name = model_name
        self.engines = engines
        self.cache = cache
        self.work_of = work_of

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for number, stats in enumerate(self.engines()):
            collector = _SchedulerCollector(self.model_name, partial(_same, stats), self.cache, self.work_of)
            for family in collector.collect():
                named = [sample._replace(labels={**sample.labels, "engine": str(number)}) for sample in family.samples]
                family.samples = []
                families.setdefault(family.name, family).samples += named
        return families.values()


def _same(stats: SchedulerStats) -> SchedulerStats:
    return stats
