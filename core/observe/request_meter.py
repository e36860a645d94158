"""What one request tells the metrics.

Owns: `RequestMeter`. Never does: export. Called by: the server, with every output of each prompt.
"""

from __future__ import annotations

import time
from collections import Counter

from core.api.outputs import RequestMetrics, RequestOutput
from core.api.sampling_params import SamplingParams
from core.observe.metrics import ServerMetrics
from core.observe.recent_requests import RecentRequest


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
        self._by_choice: Counter[int] | None = Counter() if params.n > 1 else None

    def update(self, output: RequestOutput) -> None:
        """Count `output`, a delta or the final one."""
        now = time.monotonic()
        metrics = self.metrics
        new_tokens = sum(len(completion.token_ids) for completion in output.outputs)
        if self.last_output == 0.0:
            num_prompt_tokens = len(output.prompt_token_ids)
            metrics.prompt_tokens.inc(num_prompt_tokens)
            metrics.cached_tokens.inc(output.num_cached_tokens)
            metrics.tokens_from["local_compute"].inc(num_prompt_tokens - output.num_cached_tokens)
            metrics.tokens_from["local_cache_hit"].inc(output.num_cached_tokens)
            self.entry.first_token = output.metrics.first_token_time or None
            self.entry.num_prompt_tokens = num_prompt_tokens
            self.entry.num_cached_tokens = output.num_cached_tokens
            times = output.metrics
            if times.first_token_time > 0.0:
                waited = times.first_token_time - times.arrival_time
                metrics.first_token.observe(max(0.0, waited))
        elif new_tokens:
            metrics.inter_token.observe(now - self.last_output)
        self.last_output = now
        self.num_tokens += new_tokens
        if self._by_choice is not None:
            for completion in output.outputs:
                self._by_choice[completion.index] += len(completion.token_ids)
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
        metrics.computed_length.observe(len(output.prompt_token_ids) - output.num_cached_tokens)
        longest = self.num_tokens if self._by_choice is None else max(self._by_choice.values(), default=0)
        metrics.longest_output.observe(longest)
        metrics.params_n.observe(n)
        if self.params.max_tokens is not None:
            metrics.params_max_tokens.observe(self.params.max_tokens)
        self._observe_phases(times)
        if times.first_token_time > 0.0 and times.last_token_time > 0.0:
            latency = times.last_token_time - times.arrival_time
            metrics.latency.observe(max(0.0, latency))
            decoding = max(0.0, times.last_token_time - times.first_token_time)
            metrics.decode_time.observe(decoding)
            if self.num_tokens > n:
                later_tokens = self.num_tokens - n  # each of the n completions has one first token
                metrics.per_token.observe(decoding * n / later_tokens)

    def _observe_phases(self, times: RequestMetrics) -> None:
        """How long it waited for its turn, and what followed."""
        begin = times.first_scheduled_time
        if begin <= 0.0:
            return
        metrics = self.metrics
        metrics.queue_time.observe(max(0.0, begin - times.arrival_time))
        if times.first_token_time > 0.0:
            metrics.prefill_time.observe(max(0.0, times.first_token_time - begin))
            metrics.inference_time.observe(max(0.0, times.last_token_time - begin))
