"""Paged attention through FlashInfer.

Owns: the library's plans for a step, one per kind of layer. Never does: run in a recorded graph, because plans are made
on the host.
Called by: the decoder, through the attention contract.

A wrapper writes its plan to one pinned host buffer and copies it to the device asynchronously. The next step may be
planned before that copy has run, so steps take wrappers in turn, and a wrapper is not planned again before its last
copy is complete.
"""

from __future__ import annotations

import importlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from core.api.specs import AttentionSpec
from core_attention.paged_heads import PagedHeads, PagedLayer, Places
from core_runtime.contracts import BatchView

WORKSPACE_BYTES: Final = 128 << 20
"""Size of the library's workspace."""
NUM_WRAPPERS: Final = 2
"""Wrappers of a kind of layer: one for each step in flight. More steps in flight are correct too, but wait."""

PlanKey = tuple[AttentionSpec, torch.dtype, torch.dtype]
"""A kind of layer: its sizes, and the dtypes of queries and cache."""


class Copied(Protocol):
    """An event after the copy of a plan."""

    def synchronize(self) -> None:
        """Wait for the copy."""
        ...


@dataclass(slots=True)
class Wrapper:
    """One of the library's wrappers.

    inner: the library's object.
    copied: event after the copy of its last plan; None: it has not planned yet.
    """

    inner: Any
    copied: Copied | None = None


@dataclass(slots=True)
class FlashInferStep:
    """The metadata of one step.

    view: the batch.
    places: the slots it writes.
    query_starts, page_starts: int32 [B + 1] on the host.
    pages: int32 on the device, the blocks of all sequences.
    last_lengths: int32 [B] on the host, tokens in each sequence's last block.
    plans: by kind of layer, made at its first layer.
    """

    view: BatchView
    places: Places
    query_starts: Tensor
    page_starts: Tensor
    pages: Tensor
    last_lengths: Tensor
    plans: dict[PlanKey, Any] = field(default_factory=dict)


class FlashInfer(PagedHeads):
    """Implementation of the attention contract. numerics: the library's version."""

    name = "flashinfer"

    def __init__(self, numerics: str) -> None:
        self.numerics = numerics
        self._module: Any = importlib.import_module("flashinfer")
        self._workspace: Tensor | None = None
        self._wrappers: dict[PlanKey, deque[Wrapper]] = {}

    def build(self, view: BatchView) -> FlashInferStep:
        """List the pages of all sequences, one sequence after another."""
        block_size = view.block_size
        counts = [-(-length // block_size) for length in view.seq_lens_list]
        last = [length - (count - 1) * block_size for length, count in zip(view.seq_lens_list, counts, strict=True)]
        rows = [view.block_table[index, :count] for index, count in enumerate(counts)]
        return FlashInferStep(
            view,
            Places.of(view),
            _ends(view.query_lens),
            _ends(counts),
            torch.cat(rows),
            torch.tensor(last, dtype=torch.int32),
        )

    def write(self, handle: PagedLayer, k: Tensor, v: Tensor, metadata: FlashInferStep) -> None:
        """Store k and v [T, Hkv, D] at the step's slots."""
        self.put(handle, k, v, metadata.places)

    def forward(self, handle: PagedLayer, q: Tensor, metadata: FlashInferStep, out: Tensor) -> None:
        """Compute out[T, Hq, D] in the dtype of the cache."""
        queries = q.to(handle.keys.dtype)
        key = handle.spec, queries.dtype, handle.keys.dtype
        plan = metadata.plans.get(key)
        if plan is None:
            plan = self._plan(key, queries.device, metadata)
            metadata.plans[key] = plan
        out.copy_(plan.run(queries, (handle.keys, handle.values)))

    def _plan(self, key: PlanKey, device: torch.device, step: FlashInferStep) -> Any:
        """Return the library's plan for this step, shared by all layers of the same kind."""
        spec, q_dtype, kv_dtype = key
        wrapper = self._next_wrapper(key, device)
        wrapper.inner.plan(
            step.query_starts,
            step.page_starts,
            step.pages,
            step.last_lengths,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_size,
            step.view.block_size,
            causal=True,
            sm_scale=spec.scale,
            window_left=-1 if spec.window is None else spec.window - 1,
            logits_soft_cap=spec.cap or 0.0,
            q_data_type=q_dtype,
            kv_data_type=kv_dtype,
        )
        event = torch.get_device_module(device).Event()
        event.record()
        wrapper.copied = event
        return wrapper.inner

    def _next_wrapper(self, key: PlanKey, device: torch.device) -> Wrapper:
        """Return the wrapper whose plan is the oldest, once its host buffer may be written."""
        wrappers = self._wrappers.get(key)
        if wrappers is None:
            make = self._module.BatchPrefillWithPagedKVCacheWrapper
            wrappers = deque(Wrapper(make(self._room(device), "NHD")) for _ in range(NUM_WRAPPERS))
            self._wrappers[key] = wrappers
        wrapper = wrappers[0]
        wrappers.rotate(-1)
        if wrapper.copied is not None:
            wrapper.copied.synchronize()
        return wrapper

    def _room(self, device: torch.device) -> Tensor:
        if self._workspace is None:
            self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._workspace


def _ends(lengths: list[int]) -> Tensor:
    """Return 0 followed by the cumulative sums of the lengths, int32."""
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return torch.tensor(ends, dtype=torch.int32)
