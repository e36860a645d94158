"""The contracts of proposers: who guesses the next tokens.

There are three forms. A `Proposer` guesses by itself, as lists of tokens. A plugin whose manifest answers `core_draft_spec`
with a decoder only describes a model: the core reads its weights, keeps its KV cache and draws the drafts, and the plugin
needs no `core_load`. One that answers it without a decoder brings heads of its own, `DraftHeads`, from whose logits the core
draws.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class ProposerInput:
    """What a proposer sees after a step, for the sequences that may have drafts in the next one.

    keys: sequences. token_deltas: tokens accepted since each was last among them. budget: most drafts wanted for each.
    hidden: [B, H], the residual stream (before the last norm) from which the newest token of each sequence was sampled,
    in the platform's activation dtype; valid during the call. None unless the proposer is one of `NeedsHidden`.
    """

    keys: list[tuple[str, int]]
    token_deltas: list[list[int]]
    budget: list[int]
    hidden: Tensor | None = None


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a proposer may know of a sequence's request.

    tenant: whose request it is; empty: no tenant.
    cache_salt: the request's own, or None.
    """

    tenant: str
    cache_salt: str | None


@runtime_checkable
class Proposer(Protocol):
    """Kind `speculative`. The scheduler owns the budget, the core owns verification.

    `core_load` finds the model's own matrices in `context.options`: `embedding` and `head` (LinearKernel) and `norm`
    (float32 [H], the last norm's weight). Optional parts: `NeedsHidden`, `KnowsRequests`.

    A proposer that raises, drafts more than its budget or tokens that the model does not have, or takes too long is not
    asked again until the engine starts anew. Requests go on without drafts.
    """

    def on_start(self, key: tuple[str, int], token_ids: list[int]) -> None:
        """A sequence enters the batch with all its known tokens (again after a preemption)."""
        ...

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        """Drafts for each sequence of `batch`, each list at most its budget long, maybe empty."""
        ...

    def on_finished(self, key: tuple[str, int]) -> None:
        """The sequence left the batch."""
        ...


@runtime_checkable
class NeedsHidden(Protocol):
    """A proposer that says whether it is given hidden states."""

    @property
    def needs_hidden(self) -> bool:
        """Whether `ProposerInput.hidden` is filled."""
        ...


@runtime_checkable
class KnowsRequests(Protocol):
    """A proposer that is told whose text it sees.

    What it learns from one request it may draft for another one only where tenant and cache salt are equal: how fast an
    answer comes would tell of the other's text.
    """

    def on_request(self, key: tuple[str, int], facts: RequestFacts) -> None:
        """The facts of a sequence, each time before `on_start`."""
        ...


@runtime_checkable
class HasTree(Protocol):
    """A proposer whose drafts are a tree: several guesses for one position. The core needs attention with the capability
    `tree`, and verifies the first chain of the tree where it is not there."""

    @property
    def tree(self) -> Sequence[int]:
        """For each draft that `propose` returns, in order, the index of the one that it follows; -1: the newest token.

        A draft follows an earlier one. A shorter list of drafts is the beginning of the tree.
        """
        ...


@dataclass(slots=True)
class DraftView:
    """The sequences that draft a token, as heads of their own see them. B sequences, in the same order in every call of a step.

    keys: sequences.
    tokens: int64 [B], the newest token of each: known before the first call of a step, drawn from the logits before it later.
    hidden: [B, H], what the `taps` of the `DraftSpec` say of the position from which the newest known token was sampled, in the
        platform's activation dtype; the same in every call of a step, valid during the call. None without taps.
    """

    keys: list[tuple[str, int]]
    tokens: Tensor
    hidden: Tensor | None = None


@runtime_checkable
class DraftHeads(Protocol):
    """Kind `speculative`, with a `DraftSpec` that has no decoder: heads without a KV cache.

    `core_load` finds the draft's checkpoint in `context.manifest`, whoever reads it in `context.options["loader"]`, and the
    target's own `embedding`, `head` and `norm` beside it, as a `Proposer` does. Optional part: `HearsResults`.
    """

    def logits(self, view: DraftView, step: int) -> Tensor:
        """float32 [B, V], the logits of each sequence's draft `step`, counted from 0; valid until the next call.

        The core draws from them as it does from the target's, with the same noise. A sequence whose budget is used up, or
        whose row failed, leaves the view: call 0 of the next step has all of them again.
        """
        ...


@runtime_checkable
class HearsResults(Protocol):
    """Heads that are told what became of their drafts."""

    def on_result(self, keys: list[tuple[str, int]], accepted: list[int]) -> None:
        """How many drafts of the step before each of these sequences kept."""
        ...
