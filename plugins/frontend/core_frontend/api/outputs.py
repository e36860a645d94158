"""Results for users: vLLM's result objects under vLLM's names.

Owns: `RequestOutput`, `CompletionOutput`, `SamplingMask`, `Logprob`, `RequestMetrics`. Never does: build them
(`core_frontend.output_processor` does). Called by: the `LLM` class and the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from core_frontend.api.explanation import Explanation
from core_observers.energy_use import EnergyUse
from core_observers.receipts.receipt import IssuedReceipt


class Logprob(
    msgspec.Struct, gc=False
):  # a long answer has a million of them; a garbage collection that visits each takes 0.3 s
    """One token with its log probability.

    logprob: natural logarithm. rank: 1 is the most likely token. decoded_token: its text, or None.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]
"""Token id → Logprob at one position; the chosen token comes first."""


@dataclass(slots=True)
class CalledTool:
    """One tool call, in the form that OpenAI's clients know.

    id:        the model's own id, or a new one.
    name:      of the tool.
    arguments: one JSON object as text, or the text of a custom tool's input.
    kind:      `function` or `custom`.
    complete:  False if the answer was truncated inside the call, so that its arguments may not be JSON.
    """

    id: str
    name: str
    arguments: str
    kind: str = "function"
    complete: bool = True


@dataclass(slots=True)
class AnswerParts:
    """The parsed parts of an answer.

    content:    its text.
    reasoning:  the reasoning text before it.
    tool_calls: in order.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[CalledTool] = field(default_factory=list)


@dataclass(slots=True)
class SamplingMask:
    """The tokens that could have been drawn.

    token_ids: for each token of the output, ascending; empty for tokens that came with the request as the beginning of its
        answer.
    """

    token_ids: list[list[int]]


@dataclass(slots=True)
class CompletionOutput:
    """One completion. With delta outputs `text`, `token_ids`, `logprobs` and `sampling_mask` hold only the new part.

    finish_reason: `stop`, `length`, `abort`, `error`, or None while it runs.
    stop_reason:   the stop string or stop token id that ended it, or None (end of sequence).
    specials:      start and end, in characters of `text`, of the special tokens in it; empty unless the request asked
                   for them.
    token_ends:    for each token the number of characters of `text` up to its end; empty likewise. The last tokens may
                   have no text yet.
    parts:         the parsed answer, if `LLM.chat` was given tools; else None.
    sampling_mask: of an engine with `return_sampling_mask`; else None.
    routed_experts: int16 [tokens, layers, top_k] of an engine with `enable_return_routed_experts`, once it has ended; else
                   None. The tokens are those of prompt and answer but the last, which was never computed. -1 in layers
                   without experts, and for prompt tokens from the prefix cache.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    specials: Sequence[tuple[int, int]] = ()
    token_ends: Sequence[int] = ()
    parts: AnswerParts | None = None
    sampling_mask: SamplingMask | None = None
    routed_experts: NDArray[np.int16] | None = None

    def finished(self) -> bool:
        """Whether this completion has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds since the epoch, 0.0 when not yet known.

    first_scheduled_time: when the computation of the prompt began.
    queued_ts, scheduled_ts, first_token_ts, last_token_ts: the same under vLLM's newer names.
    """

    arrival_time: float = 0.0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    num_generation_tokens: int = 0
    first_scheduled_time: float = 0.0

    @property
    def queued_ts(self) -> float:
        """Return the time of the request's arrival."""
        return self.arrival_time

    @property
    def scheduled_ts(self) -> float:
        """Return the time at which the computation of its prompt began."""
        return self.first_scheduled_time

    @property
    def first_token_ts(self) -> float:
        """Return the time of its first token."""
        return self.first_token_time

    @property
    def last_token_ts(self) -> float:
        """Return the time of its newest token."""
        return self.last_token_time

    @property
    def first_token_latency(self) -> float:
        """Return the seconds from its arrival to its first token; 0.0 if it has none."""
        if not self.first_token_time:
            return 0.0
        return max(self.first_token_time - self.arrival_time, 0.0)


@dataclass(slots=True)
class RequestOutput:
    """The state of one request.

    prompt_logprobs: one entry for each prompt token, the first one None; or None if not requested.
    num_cached_tokens: prompt tokens that came from the prefix cache.
    explain: how the answer came about, with its last output; None unless requested.
    receipt: what the answers were computed with, to verify them later; None unless requested.
    energy: what the answers took, with the last output; None unless requested.
    kv_transfer_params: for the engine that is to answer, with the last output of a request that leases its blocks.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    num_cached_tokens: int = 0
    explain: Explanation | None = None
    receipt: IssuedReceipt | None = None
    energy: EnergyUse | None = None
    kv_transfer_params: dict[str, Any] | None = None
