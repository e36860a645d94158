"""The metrics of one request.

Owns: `RequestMeter`. Never does: export. Called by: the server, with every output of each prompt.
"""

from __future__ import annotations

import time
from collections import Counter

from core.api.sampling_params import SamplingParams
from core_frontend.api.outputs import RequestMetrics, RequestOutput
from core_observers.metrics import ServerMetrics
from core_observers.recent_requests import RecentRequest


class RequestMeter:
    """The meter of one request until its end. Feed every output (or `refuse` it), then call `close`.

    entry: the request's row among the recent requests, which people look up.
    """

    def __init__(self, metrics: ServerMetrics, params: SamplingParams, entry: RecentRequest) -> None:
        self.metrics = metrics
        self.entry = entry
        self.params = params
        self.num_tokens = 0
        self.last_output = 0.0
        self.finished = False
        self._ended: set[int] = set()
        self._by_choice: Counter[int] | None = Counter() if params.n > 1 else None

    def update(self, output: RequestOutput) -> None:
        """Count `output`, a delta or the final one."""
        now = time.monotonic()
        new_tokens = sum(len(completion.token_ids) for completion in output.outputs)
        if self.last_output == 0.0:
            self._begin(output)
        elif new_tokens:
            self.metrics.times.inter_token.observe(now - self.last_output)
        self.last_output = now
        self.num_tokens += new_tokens
        if self._by_choice is not None:
            for completion in output.outputs:
                self._by_choice[completion.index] += len(completion.token_ids)
        self.entry.num_tokens = self.num_tokens
        if new_tokens:
            self.metrics.tokens.generated.inc(new_tokens)
        for completion in output.outputs:
            if completion.finish_reason is not None and completion.index not in self._ended:
                self._ended.add(completion.index)
                self.metrics.ends[completion.finish_reason].inc()
        if output.finished:
            self._finish(output)

    def refuse(self) -> None:
        """Note that the request never ran, so `close` counts nothing."""
        self.finished = True
        self.entry.close("refused")

    def close(self) -> None:
        """Note the end of the request; completions that have not ended by themselves were aborted."""
        if not self.finished:
            num_aborted = self.params.n - len(self._ended)
            self.metrics.ends["abort"].inc(num_aborted)
        self.entry.close("abort")

    def _begin(self, output: RequestOutput) -> None:
        """Count the prompt, which is known to have run with the first output."""
        num_prompt_tokens = len(output.prompt_token_ids)
        num_cached_tokens = output.num_cached_tokens
        tokens = self.metrics.tokens
        tokens.prompt.inc(num_prompt_tokens)
        tokens.cached.inc(num_cached_tokens)
        tokens.by_source["local_compute"].inc(num_prompt_tokens - num_cached_tokens)
        tokens.by_source["local_cache_hit"].inc(num_cached_tokens)
        times = output.metrics
        self.entry.first_token = times.first_token_time or None
        self.entry.num_prompt_tokens = num_prompt_tokens
        self.entry.num_cached_tokens = num_cached_tokens
        if times.first_token_time > 0.0:
            waited = times.first_token_time - times.arrival_time
            self.metrics.times.first_token.observe(max(0.0, waited))

    def _finish(self, output: RequestOutput) -> None:
        self.finished = True
        reasons = [completion.finish_reason for completion in output.outputs]
        self.entry.close(reasons[0] or "stop")
        n = self.params.n
        sizes = self.metrics.sizes
        sizes.prompt.observe(len(output.prompt_token_ids))
        sizes.generated.observe(self.num_tokens)
        sizes.computed.observe(len(output.prompt_token_ids) - output.num_cached_tokens)
        longest = self.num_tokens if self._by_choice is None else max(self._by_choice.values(), default=0)
        sizes.longest.observe(longest)
        sizes.n.observe(n)
        if self.params.max_tokens is not None:
            sizes.max_tokens.observe(self.params.max_tokens)
        self._observe_answer(output.metrics)
        self._observe_phases(output.metrics)

    def _observe_answer(self, times: RequestMetrics) -> None:
        """Observe the duration of the whole request, and per token."""
        if times.first_token_time <= 0.0 or times.last_token_time <= 0.0:
            return
        histograms = self.metrics.times
        histograms.whole.observe(max(0.0, times.last_token_time - times.arrival_time))
        decoding = max(0.0, times.last_token_time - times.first_token_time)
        histograms.decode.observe(decoding)
        n = self.params.n
        if self.num_tokens > n:
            later_tokens = self.num_tokens - n  # each of the n completions has one first token
            histograms.per_token.observe(decoding * n / later_tokens)

    def _observe_phases(self, times: RequestMetrics) -> None:
        """Observe the queue time, and the phases after it."""
        begin = times.first_scheduled_time
        if begin <= 0.0:
            return
        histograms = self.metrics.times
        histograms.queue.observe(max(0.0, begin - times.arrival_time))
        if times.first_token_time > 0.0:
            histograms.prefill.observe(max(0.0, times.first_token_time - begin))
            histograms.inference.observe(max(0.0, times.last_token_time - begin))
