"""Experts whose matrices adapters change.

Owns: the recomputation of the tokens that such adapters use. Never does: compute other tokens, or record: steps with such
adapters run call by call. Called by: the experts of a block, in a model with adapters.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager

import torch
from torch import Tensor

from core_runtime.contracts import ExpertsKernel
from core_runtime.layers.adapted import StepAdapters
from core_runtime.layers.experts import ReferenceExperts


class AdaptedExperts(ReferenceExperts):
    """The experts of a layer one by one, each changed by the adapters of its tokens.

    step: the adapters of the tokens that the current expert computes; its layers share it.
    rows: int32 [n], table rows of the tokens; set before a call.
    """

    step: StepAdapters
    rows: Tensor

    def _expert(self, expert: int, x: Tensor, tokens: Tensor) -> Tensor:
        """Compute one expert for x [n, H] with the adapters of its tokens. Returns [n, H]."""
        self.step.begin(self.rows[tokens])
        return super()._expert(expert, x, tokens)


class ExpertsAdapters:
    """The adapters of a layer of experts.

    step: the adapters of the current step.
    experts: computes the tokens whose adapters change an expert.
    changing: rows of the tables whose adapters do.
    """

    def __init__(self, step: StepAdapters, experts: AdaptedExperts, changing: Set[int]) -> None:
        self._step = step
        self._experts = experts
        self._changing = changing

    @property
    def active(self) -> bool:
        """Whether an adapter of the current step may change an expert."""
        return self._step.rows is not None and bool(self._changing)

    def run(
        self, own: ExpertsKernel, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool
    ) -> None:
        """Compute out[T, H] (+)= the chosen experts of x [T, H]; see `ExpertsKernel`."""
        before = out.clone() if accumulate else None
        own(x, ids, weights, out, accumulate=accumulate)
        places = self._places()
        if not len(places):
            return
        found = out.new_empty(len(places), out.shape[1])
        with self._of_tokens(places):
            self._experts(x[places], ids[places], weights[places], found)
        out[places] = found if before is None else before[places] + found

    def apart(self, x: Tensor, slots: Tensor, weights: Tensor, out: Tensor) -> None:
        """Replace outputs of choices in out [T, k * H], for x [T, H] and this rank's slots; see `HoldsSomeExperts`."""
        places = self._places()
        if not len(places):
            return
        found = out.new_empty(len(places), out.shape[1])
        with self._of_tokens(places):
            self._experts.apart(x[places], slots[places], weights[places], found)
        out[places] = found

    def combine(
        self, outputs: Tensor, ids: Tensor, weights: Tensor, count: int, before: Tensor | None, out: Tensor
    ) -> None:
        """Replace sums in out [T, H] by those of the outputs [T, k * H] of all ranks, with the bits of `run`.

        ids: experts of the whole layer, of which there are `count`. before: what `out` held, to add to; None: nothing.
        """
        places = self._places()
        if not len(places):
            return
        found = out.new_empty(len(places), out.shape[1])
        self._experts.combine(outputs[places], ids[places], weights[places], count, found)
        out[places] = found if before is None else before[places] + found

    def _places(self) -> Tensor:
        """Return the tokens of the step whose adapters may change an expert, int64 [n]."""
        rows = self._step.rows
        assert rows is not None, "a step without adapters runs the experts alone"
        changing = torch.tensor(sorted(self._changing), dtype=torch.int32, device=rows.device)
        return torch.isin(rows, changing).nonzero().squeeze(1)

    @contextmanager
    def _of_tokens(self, places: Tensor) -> Iterator[None]:
        """Let the experts compute these tokens of the step."""
        assert self._step.rows is not None, "a step without adapters runs the experts alone"
        self._experts.rows = self._step.rows[places]
        try:
            yield
        finally:  # the same layers may compute the next step without adapters
            self._experts.step.begin(None)
