"""Sampling rows of one step: the input of the kernels for each row, and the results.

Owns: contiguous copies of the columns at addresses that never change, and the results. Never does: look at logits.
Called by: the persistent batch (binds and advances them), `core_runtime.sampling.sampler`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.messages import TokenLogprobs
from core_runtime.sampling.columns import INDEX, NOT_ASKED, PURPOSE, SamplingColumns
from core_runtime.sampling.device_rows import DeviceRows
from core_runtime.sampling.filters import LOWEST
from core_runtime.sampling.logprob_rows import LogprobRows
from core_runtime.sampling.noise import PURPOSE_SAMPLE, Float32, Ids
from core_runtime.sampling.state import SequenceSampling

ONE: Final = np.array(1)
"""A numpy scalar: adding it takes half the time of adding a Python int. With one row, adding into a copy is faster than
in place.
"""

Integers = NDArray[np.integer[Any]]


class KernelRows(NamedTuple):
    """The rows of a `RaceCall`: its fields between the logits and the masks; see there for shapes.

    The tensors share the arrays' memory, or lie on the device.
    """

    which: Tensor
    keys: Tensor
    temperatures: Tensor
    out: Tensor
    filters: tuple[Tensor, Tensor, Tensor] | None

    def on(self, device: torch.device) -> KernelRows:
        """Copy the rows to a device; tokens written there do not appear here."""
        filters = self.filters
        if filters is not None:
            top_k, top_p, least = filters
            filters = top_k.to(device), top_p.to(device), least.to(device)
        return KernelRows(
            self.which.to(device), self.keys.to(device), self.temperatures.to(device), self.out.to(device), filters
        )


class SampleRows:
    """At most N sampling rows of one step, at addresses that never change. The batch and each draft pass own one.

    out: int64 [N], memory for the tokens.

    count: rows of this step.
    slots: int64 [count], slot of each row's sequence.
    keys: int64 [N, 5], from the columns, with the row's output index.
    temperatures: float32 [N], from the columns.
    top_k: int64 [N], from the columns.
    top_p: float64 [N], from the columns.
    least: float32 [N], from the columns.
    num_drafted: integers [count], number of drafts before the row's position; None: there are no drafts.
    adjusted: rows whose logits are changed before the race.
    masked: rows of sequences with a token mask.
    reported: rows with requested logprobs.
    wanted: number of most likely tokens of each of these rows, -1: all.
    lists: whether some of these rows report tokens that their requests name.
    filtered: whether the device draws some rows with a filter.
    tokens: int64 [count], sampled tokens; -1 for a failed row.
    errors: error messages by row.
    logprobs: logprobs by row.
    supports: tokens that could have been drawn, int64, by row; empty unless the sampler tells them.
    purpose: purpose of the noise; with PURPOSE_DRAFT the tokens are drafts, and their distributions are kept.
    on_device: the same columns in device memory; None: kernels read these.
    """

    def __init__(
        self,
        columns: SamplingColumns,
        out: NDArray[np.int64],
        purpose: int = PURPOSE_SAMPLE,
        on_device: DeviceRows | None = None,
    ) -> None:
        size = len(out)
        self.on_device = on_device
        if on_device is not None:
            on_device.number()
        self.columns = columns
        self.purpose = purpose
        self.keys = np.zeros((size, 5), np.int64)
        self.temperatures: Float32 = np.zeros(size, np.float32)
        self.top_k: Ids = np.zeros(size, np.int64)
        self.top_p = np.zeros(size, np.float64)
        self.least: Float32 = np.zeros(size, np.float32)
        self._which: Ids = np.arange(size)
        self._out: Ids = out
        self._min_tokens: Integers | None = None
        self._always: NDArray[np.bool_]
        self.tokens: Ids = out[:0]
        self.num_drafted: Integers | None = None
        self.reported: list[int] = []
        self.wanted: list[int] = []
        self.lists = False
        self.masked: list[int] = []
        self.filtered = False
        self.errors: dict[int, str] = {}
        self.logprobs: dict[int, TokenLogprobs] = {}
        self.supports: dict[int, Ids] = {}

    @property
    def count(self) -> int:
        """Number of rows of this step."""
        return len(self.tokens)

    def bind(self, slots: Ids, indices: Integers, num_drafted: Integers | None = None) -> None:
        """Bind the rows of a step. indices: output index of each row."""
        # mode="clip" because every slot exists: with "raise", numpy writes through a temporary copy
        self._forget()
        count = len(slots)
        columns = self.columns
        self.slots = slots
        self.tokens = self._out[:count]
        np.take(columns.keys, slots, axis=0, out=self.keys[:count], mode="clip")
        self._indices = self.keys[:count, INDEX]
        self._indices[:] = indices
        # The columns contain PURPOSE_SAMPLE.
        if self.purpose != PURPOSE_SAMPLE:
            self.keys[:count, PURPOSE] = self.purpose
        np.take(columns.temperatures, slots, out=self.temperatures[:count], mode="clip")
        np.take(columns.top_k, slots, out=self.top_k[:count], mode="clip")
        np.take(columns.top_p, slots, out=self.top_p[:count], mode="clip")
        np.take(columns.least, slots, out=self.least[:count], mode="clip")
        self.num_drafted = num_drafted
        asked = columns.logprobs[slots]
        reported = (asked != NOT_ASKED).nonzero()[0]
        self.reported = reported.tolist()
        self.wanted = asked[reported].tolist() if self.reported else []
        self.lists = bool(self.reported and columns.lists[slots].any())
        self.masked = columns.masked[slots].nonzero()[0].tolist() if columns.num_masked else []
        self._always = columns.adjusts[slots]
        min_tokens = columns.min_tokens[slots]
        self._min_tokens = min_tokens if min_tokens.any() else None
        self._find_adjusted()
        if self.on_device is not None:
            for name in ("keys", "temperatures", "top_k", "top_p", "least"):
                self.on_device.put(name, getattr(self, name)[:count])
            has_limit = self.top_k[:count].any() or (self.top_p[:count] < 1.0).any()
            self.filtered = bool(has_limit or (self.least[:count] > LOWEST).any())
            if self.reported:
                self.on_device.ask(self.told())

    def advance(self) -> None:
        """Advance each row of the same sequences by one output index."""
        self._forget()
        self._indices[:] = self._indices + ONE
        # Nothing but `min_tokens` makes a row's adjustments depend on its index.
        if self._min_tokens is not None:
            self._find_adjusted()
        if self.on_device is not None:
            # All other columns are constant while a sequence runs.
            self.on_device.put("keys", self.keys[: self.count])

    @property
    def is_plain(self) -> bool:
        """Whether tokens are drawn from unchanged logits, now and after `advance`, by kernels on the device."""
        if self.on_device is None or self.count > len(self.on_device.out):
            return False
        return not (self.adjusted or self.masked) and self._min_tokens is None

    def told(self) -> LogprobRows:
        """Return the rows with requested logprobs."""
        return LogprobRows(self.reported, self.wanted)

    def fetch(self, start: int, stop: int) -> None:
        """Wait for the tokens of consecutive rows that a kernel drew on the device, and copy them to the host."""
        if self.lies_on_device(stop):
            assert self.on_device is not None
            drawn = self.on_device.out[start:stop]
            self._out[start:stop] = drawn.cpu().numpy()

    def lies_on_device(self, stop: int) -> bool:
        """Whether the device holds all rows before `stop`."""
        return self.on_device is not None and stop <= len(self.on_device.out)

    def _forget(self) -> None:
        if self.errors:
            self.errors = {}
        if self.logprobs:
            self.logprobs = {}
        if self.supports:
            self.supports = {}

    def _find_adjusted(self) -> None:
        adjusts = self._always
        if self._min_tokens is not None:
            adjusts = adjusts | (self._indices < self._min_tokens)
        self.adjusted: list[int] = adjusts.nonzero()[0].tolist()

    def state(self, row: int) -> SequenceSampling:
        """Return the rarely used parameters of a row's sequence."""
        slot = int(self.slots[row])
        state = self.columns.states[slot]
        assert state is not None, f"nobody entered slot {self.slots[row]}"
        return state

    def index(self, row: int) -> int:
        """Return the output index of a row."""
        return int(self.keys[row, INDEX])

    def drafted(self, row: int) -> int:
        """Return the number of drafts before a row's position."""
        if self.num_drafted is None:
            return 0
        return int(self.num_drafted[row])

    def part(self, start: int, stop: int) -> KernelRows:
        """Return consecutive rows, for logits that begin with row `start`; on the device if it holds them."""
        if self.lies_on_device(stop):
            assert self.on_device is not None
            return _device_part(self.on_device, start, stop)
        return self.host_part(start, stop)

    def host_part(self, start: int, stop: int) -> KernelRows:
        """Return consecutive rows on the host."""
        which = self._which[: stop - start]
        keys = self.keys[start:stop]
        temperatures = self.temperatures[start:stop]
        filters = self.top_k[start:stop], self.top_p[start:stop], self.least[start:stop]
        out = self._out[start:stop]
        return _kernel_rows(which, keys, temperatures, filters, out)

    def chosen(self, rows: Ids, which: Ids) -> KernelRows:
        """Copy some rows, with an `out` of their own. which: their rows of logits."""
        keys = self.keys[rows]
        temperatures = self.temperatures[rows]
        filters = self.top_k[rows], self.top_p[rows], self.least[rows]
        out = np.empty(len(rows), np.int64)
        return _kernel_rows(which, keys, temperatures, filters, out)


def _device_part(rows: DeviceRows, start: int, stop: int) -> KernelRows:
    """Return consecutive rows on the device."""
    return KernelRows(
        rows.which.tensor[: stop - start],
        rows.keys.tensor[start:stop],
        rows.temperatures.tensor[start:stop],
        rows.out[start:stop],
        (rows.top_k.tensor[start:stop], rows.top_p.tensor[start:stop], rows.least.tensor[start:stop]),
    )


def _kernel_rows(
    which: Ids,
    keys: NDArray[np.int64],
    temperatures: Float32,
    filters: tuple[Ids, NDArray[np.float64], Float32],
    out: Ids,
) -> KernelRows:
    top_k, top_p, least = filters
    return KernelRows(
        torch.from_numpy(which),
        torch.from_numpy(keys),
        torch.from_numpy(temperatures),
        torch.from_numpy(out),
        (torch.from_numpy(top_k), torch.from_numpy(top_p), torch.from_numpy(least)),
    )
