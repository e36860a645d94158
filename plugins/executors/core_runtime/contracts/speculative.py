"""The contracts of proposers, which draft the next tokens.

There are three forms. A `Proposer` drafts by itself, as lists of tokens. A plugin whose manifest answers `core_draft_spec`
with a decoder only describes a model: the core reads its weights, owns its KV cache and draws the drafts, and the plugin
needs no `core_load`. A plugin that answers it without a decoder has heads of its own, `DraftHeads`, from whose logits the
core draws.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class ProposerInput:
    """Input of a proposer after a step, for the sequences that may have drafts in the next one.

    keys: keys of the sequences. token_deltas: tokens accepted since each was last included. budget: maximum drafts of each.
    hidden: [B, H], the residual stream (before the last norm) from which the newest token of each sequence was sampled,
    in the platform's activation dtype; valid during the call. None unless the proposer has `NeedsHidden`.
    """

    keys: list[tuple[str, int]]
    token_deltas: list[list[int]]
    budget: list[int]
    hidden: Tensor | None = None


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """Facts about a sequence's request for a proposer.

    tenant: tenant of the request; empty: none.
    cache_salt: cache salt of the request, or None.
    adapter: digest of the request's adapter; empty: the base model.
    extra_args: the request's own arguments for plugins, or None.
    num_prompt_tokens: length of its prompt.
    """

    tenant: str
    cache_salt: str | None
    adapter: str = ""
    extra_args: Mapping[str, Any] | None = None
    num_prompt_tokens: int = 0


@runtime_checkable
class Proposer(Protocol):
    """Kind `speculative`. The scheduler owns the budget, the core owns verification.

    `core_load` finds the model's own matrices in `context.options`: `embedding` and `head` (LinearKernel) and `norm`
    (float32 [H], the last norm's weight). Optional parts: `NeedsHidden`, `KnowsRequests`.

    A proposer that raises, drafts more than its budget or tokens that the model does not have, or takes too long is not
    called again until the engine restarts. Requests continue without drafts.
    """

    def on_start(self, key: tuple[str, int], token_ids: list[int]) -> None:
        """A sequence enters the batch with all its known tokens (again after a preemption)."""
        ...

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        """Return drafts for each sequence of `batch`, each list at most its budget long, possibly empty."""
        ...

    def on_finished(self, key: tuple[str, int]) -> None:
        """Handle a sequence that left the batch."""
        ...


@runtime_checkable
class NeedsHidden(Protocol):
    """A proposer that declares whether it needs hidden states."""

    @property
    def needs_hidden(self) -> bool:
        """Whether `ProposerInput.hidden` is filled."""
        ...


@runtime_checkable
class KnowsRequests(Protocol):
    """A proposer that receives facts about the requests whose text it sees.

    It may use what it learns from one request for another one only if tenant and cache salt are equal: otherwise the speed of
    an answer would reveal the other request's text.
    """

    def on_request(self, key: tuple[str, int], facts: RequestFacts) -> None:
        """Receive the facts of a sequence, each time before `on_start`."""
        ...


@runtime_checkable
class HasTree(Protocol):
    """A proposer whose drafts are a tree: several guesses for one position. The core needs attention with the
    capability `tree`; without it, only the first chain of the tree is verified.
    """

    @property
    def tree(self) -> Sequence[int]:
        """For each draft that `propose` returns, in order, the index of the draft that it follows; -1: the newest token.

        A draft follows an earlier one. A shorter list of drafts is a prefix of the tree.
        """
        ...


@dataclass(slots=True)
class DraftView:
    """Input of draft heads: B sequences that draft a token, in the same order in every call of a step.

    keys: keys of the sequences.
    tokens: int64 [B], newest token of each: known before the first call of a step, drawn from the previous logits after it.
    hidden: [B, H], the `taps` of the `DraftSpec` at the position from which the newest known token was sampled, in the
        platform's activation dtype; the same in every call of a step, valid during the call. None without taps.
    """

    keys: list[tuple[str, int]]
    tokens: Tensor
    hidden: Tensor | None = None


@runtime_checkable
class DraftHeads(Protocol):
    """Kind `speculative`, with a `DraftSpec` that has no decoder: heads without a KV cache.

    `core_load` finds the draft's checkpoint in `context.manifest`, its loader in `context.options["loader"]`, and the
    target's own `embedding`, `head` and `norm` there too, as a `Proposer` does. Optional part: `HearsResults`.
    """

    def logits(self, view: DraftView, step: int) -> Tensor:
        """Return float32 [B, V], the logits of each sequence's draft `step`, counted from 0; valid until the next call.

        The core draws from them as it does from the target's, with the same noise. A sequence with a used-up budget or
        a failed row leaves the view; call 0 of the next step has all sequences again.
        """
        ...


@runtime_checkable
class HearsResults(Protocol):
    """Draft heads that receive the number of accepted drafts."""

    def on_result(self, keys: list[tuple[str, int]], accepted: list[int]) -> None:
        """Receive the number of drafts from the previous step that each of these sequences kept."""
        ...
