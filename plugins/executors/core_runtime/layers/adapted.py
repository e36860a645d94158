"""What the adapters of a step change in a layer.

Owns: the rows of the current step that adapters change, and the order of a layer's own product and its change. Never does: read
an adapter, or choose the adapters of a step. Called by: linear layers, heads and embeddings of a model with adapters.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from core_runtime.contracts import JoinedLinear, JoinsProducts, LinearKernel, LowRankTable, is_recordable


class OwnProduct(Protocol):
    """The product of a layer without adapters."""

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`."""
        ...


class StepAdapters:
    """The adapters of the current step. All adapted layers of a model share it; the forward pass sets it.

    rows: int32 [T], table row of each token's adapter, -1 for the base model; None: the step has no adapters.
    gained: the same for tokens whose adapters multiply outputs (DoRA), -1 for all others; None: no adapter of the step does.
    added: the same for the other tokens.
    changes_head: whether an adapter of the step changes the head. changes_norms: whether one changes a norm. changes_whole:
        whether one has whole tensors in place of the model's.
    """

    def __init__(self) -> None:
        self.rows: Tensor | None = None
        self.gained: Tensor | None = None
        self.added: Tensor | None = None
        self.changes_head = False
        self.changes_norms = False
        self.changes_whole = False

    def begin(
        self,
        rows: Tensor | None,
        gaining: Tensor | None = None,
        *,
        changes_head: bool = False,
        changes_norms: bool = False,
        changes_whole: bool = False,
    ) -> None:
        """Set the rows of the next step. gaining: int32, the table rows of adapters that multiply outputs; None: no adapter
        of the step does. Only without it, and without changes of norms and whole tensors, may the step be recorded.
        """
        self.rows = rows
        self.changes_head = changes_head
        self.changes_norms = changes_norms
        self.changes_whole = changes_whole
        self.gained = self.added = None
        if rows is not None and gaining is not None:
            multiplied = torch.isin(rows, gaining)
            self.gained = rows.masked_fill(~multiplied, -1)
            self.added = rows.masked_fill(multiplied, -1)


class LayerAdapters:
    """The adapters of one layer.

    step: the adapters of the current step.
    table: the resident adapters.
    single: kernel of the whole layer; None: it has several.
    """

    def __init__(self, step: StepAdapters, table: LowRankTable, single: LinearKernel | None) -> None:
        self._step = step
        self.table = table
        self._joined = None if single is None else _joined(table, single)

    @property
    def active(self) -> bool:
        """Whether the current step has adapters."""
        return self._step.rows is not None

    def run(self, own: OwnProduct, x: Tensor, out: Tensor, *, accumulate: bool) -> None:
        """Compute the layer's product and its change in a step with adapters."""
        step = self._step
        assert step.rows is not None, "a step without adapters runs the layer alone"
        if step.gained is None or step.added is None:
            if self._joined is not None:
                self._joined(x, step.rows, out, accumulate=accumulate)
                return
            own(x, out, accumulate=accumulate)
            self.table(x, step.rows, out)
        elif not accumulate:
            own(x, out)
            self.table(x, step.rows, out)
        else:
            self._add_gained(own, x, out, step.gained, step.added)

    def _add_gained(self, own: OwnProduct, x: Tensor, out: Tensor, gained: Tensor, added: Tensor) -> None:
        """Add the product to out, where some adapters multiply it: theirs must be alone first."""
        before = out.clone()
        own(x, out, accumulate=True)
        self.table(x, added, out)
        product = torch.empty_like(out)
        own(x, product)
        self.table(x, gained, product)
        out.copy_(torch.where((gained >= 0).unsqueeze(1), before + product, out))


def _joined(table: LowRankTable, single: LinearKernel) -> JoinedLinear | None:
    """Return a layer's product and its updates in one call, unless only separate calls can be recorded."""
    if not isinstance(table, JoinsProducts):
        return None
    found = table.joined(single)
    if found is not None and is_recordable(table) and not is_recordable(found):
        return None
    return found
