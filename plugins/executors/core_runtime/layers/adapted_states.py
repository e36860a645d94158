"""What the adapters of a step change in a layer with a state: tensors of its recurrence, which they replace.

Owns: the division of a step by the tensors that compute each sequence. Never does: read an adapter, or record: steps with such
adapters run call by call. Called by: layers with a state, in a model with adapters.

The products of a recurrence (`x_proj` and `dt_proj` of Mamba) are computed between its convolution and its state, inside of the
backend, so that an adapter cannot be added to them afterwards. Each such adapter has the layer's whole tensors instead.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from core_runtime.contracts import BatchView, StateBackend
from core_runtime.layers.whole_change import WholeAdapters, WholeChange


class StatePart(NamedTuple):
    """The sequences of a step that the same tensors compute.

    row: row of their adapter in the tables; -1: the model's own tensors.
    places: int64 [n], their rows in the step; None: all of them.
    metadata: the backend's metadata of these sequences.
    """

    row: int
    places: Tensor | None
    metadata: Any


class StateStep:
    """The metadata of a step for the layers with a state of one KV group.

    whole: the backend's metadata of all sequences.
    """

    __slots__ = ("_backend", "_owners", "_parts", "_view", "whole")

    def __init__(self, backend: StateBackend, view: BatchView) -> None:
        self.whole = backend.build_state(view)
        self._backend = backend
        self._view = view
        self._owners: list[int] | None = None
        self._parts: dict[tuple[int, ...], list[StatePart]] = {}

    def parts(self, rows: Tensor, changing: Container[int]) -> list[StatePart]:
        """Return the sequences by their tensors. rows: int32 [T], table row of each token. changing: rows that change the
        layer. Layers with equal `changing` share the result.
        """
        if self._owners is None:
            ends = self._view.cu_seqlens_q[1 : self._view.num_seqs + 1].long() - 1
            self._owners = rows[ends].tolist()
        owners = tuple(row if row in changing else -1 for row in self._owners)
        if owners not in self._parts:
            self._parts[owners] = [self._part(row, owners) for row in sorted(set(owners))]
        return self._parts[owners]

    def _part(self, row: int, owners: tuple[int, ...]) -> StatePart:
        sequences = [index for index, owner in enumerate(owners) if owner == row]
        if len(sequences) == len(owners):
            return StatePart(row, None, self.whole)
        view, places = _chosen(self._view, sequences)
        return StatePart(row, places, self._backend.build_state(view))


class StateAdapters(WholeAdapters):
    """The adapters of one layer with a state."""

    __slots__ = ()

    def parts(self, step: StateStep) -> Iterator[tuple[WholeChange | None, StatePart]]:
        """Yield the parts of a step with the change of each; None: the model's own tensors compute it."""
        assert self._step.rows is not None, "a step without adapters has nothing to change"
        for part in step.parts(self._step.rows, self._changes):
            yield self._changes.get(part.row), part


def _chosen(view: BatchView, sequences: list[int]) -> tuple[BatchView, Tensor]:
    """Return a step of some sequences of `view` alone, and their rows in it, int64 [n]."""
    device = view.cu_seqlens_q.device
    chosen = torch.tensor(sequences, device=device)
    starts = list(accumulate(view.query_lens, initial=0))
    lengths = [view.query_lens[index] for index in sequences]
    seq_lens = [view.seq_lens_list[index] for index in sequences]
    places = torch.cat([torch.arange(starts[index], starts[index + 1]) for index in sequences]).to(device)
    table = view.block_table[chosen]
    sources = view.state_sources
    if sources is not None:
        # Backends take sources as a part of the table, with its strides.
        width = sources.shape[1]
        own = table.clone()
        own[:, :width] = sources[chosen]
        sources = own[:, :width]
    found = replace(
        view,
        num_tokens=len(places),
        num_seqs=len(sequences),
        max_query_len=max(lengths),
        max_seq_len=max(seq_lens),
        query_lens=lengths,
        seq_lens_list=seq_lens,
        cu_seqlens_q=torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32, device=device),
        seq_lens=view.seq_lens[chosen],
        block_table=table,
        slot_mapping=view.slot_mapping[places],
        positions=view.positions[places],
        state_sources=sources,
        rotary=None,
        sees_to=None,
    )
    return found, places
