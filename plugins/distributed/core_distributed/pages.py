"""KV pages of an engine's ranks, in memory that all ranks of a host see.

Owns: `LeadingPages`, rank 0's end: the places of pages, and when the other ranks are done with them; `FollowingPages`, another
rank's end. Never does: copy a block (workers do), or keep a page (KV connectors do). Called by: the executors and the ranks.

Rank r's part of a page lies behind those of the ranks before it, so that a page has the bytes of a block in all ranks. Plans
name places alone, and each rank copies its part itself. Place 0 has the number of the last step with copies that each rank
has passed, negative where the rank failed in it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from core.api.step_plan import StepPlan, StepResult
from core_kv_connectors.shared_pages import PagePart, PlacedTransfers, SharedPages

NUMBER_BYTES: Final = 8
LOOK_S: Final = 50e-6


class LeadingPages:
    """Rank 0's end. descriptor: of an empty file, which stays open. sizes: bytes of each rank's part of a page.

    page_bytes: of a whole page.
    """

    def __init__(self, descriptor: int, sizes: Sequence[int]) -> None:
        self._descriptor = descriptor
        self._num_ranks = len(sizes)
        self._own_bytes = sizes[0]
        self.page_bytes = sum(sizes)
        self._pages = SharedPages(descriptor, self.page_bytes)
        self._numbers = self._pages.take()  # place 0 has room for 512 ranks, however small a page is
        self._unsettled: deque[tuple[int, PlacedTransfers]] = deque()
        self.new_page = self._pages.take

    def place(self, plan: StepPlan, number: int) -> StepPlan:
        """Return a plan whose pages have places. number: of the step, higher than that of every earlier one."""
        if plan.transfers is None:
            return plan
        transfers = self._pages.placed(plan.transfers)
        # After a failed step another rank may still copy: until it has passed the step, nothing else gets these places.
        passed = min(map(abs, self._passed()))
        while self._unsettled and self._unsettled[0][0] <= passed:
            self._unsettled.popleft()
        self._unsettled.append((number, transfers))
        return replace(plan, transfers=transfers)

    def own(self, plan: StepPlan) -> StepPlan:
        """Return a placed plan for the worker of rank 0, with its part of each page."""
        transfers = plan.transfers
        if not isinstance(transfers, PlacedTransfers):
            return plan
        return replace(plan, transfers=transfers.part(0, self._own_bytes))

    def complete(self, plan: StepPlan, result: StepResult) -> None:
        """Put whole pages into the result of a placed plan that all ranks have passed."""
        if isinstance(plan.transfers, PlacedTransfers) and result.pages is not None:
            result.pages = plan.transfers.into

    def wait(self, number: int, check: Callable[[], None], limit_s: float) -> None:
        """Wait until all ranks have passed a step with copies. check: raises when a rank has ended. limit_s: 0: none.

        Raises TimeoutError, and RuntimeError where a rank has failed in the step.
        """
        end = time.monotonic() + limit_s
        while min(map(abs, self._passed())) < number:
            check()
            if limit_s and time.monotonic() > end:
                raise TimeoutError(f"a rank has not copied its KV pages of step {number}")
            time.sleep(LOOK_S)
        if -number in self._passed():
            raise RuntimeError(f"a rank failed in step {number}, which copies KV pages")

    def _passed(self) -> list[int]:
        """Return the numbers of the other ranks. Read by a system call, which sees their copies before their numbers."""
        held = os.pread(self._descriptor, NUMBER_BYTES * self._num_ranks, 0)
        return list(np.frombuffer(held, "<i8")[1:].tolist())


class FollowingPages(PagePart):
    """Another rank's end. descriptor: of the file, which stays open. sizes: bytes of each rank's part of a page."""

    def __init__(self, descriptor: int, rank: int, sizes: Sequence[int]) -> None:
        begin = sum(sizes[:rank])
        super().__init__(descriptor, sum(sizes), begin, begin + sizes[rank])
        self._file = descriptor
        self._rank = rank

    def passed(self, number: int) -> None:
        """Note that this rank has made the copies of a step. number: negative if it failed in it."""
        os.pwrite(self._file, number.to_bytes(NUMBER_BYTES, "little", signed=True), NUMBER_BYTES * self._rank)
