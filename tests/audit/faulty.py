"""Faults that show only in steps with several rows, planted around a real executor.

Owns: `Faulty` and the table of faults. Called by: the tests of the audit.

Each fault changes one step of several rows in the way that a defect of a kernel or of the bookkeeping would: what rows read,
what is written to their blocks, or which token they sample. Rows that are computed alone never meet one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from core.api.kv_transfer import KVTransfers
from core.api.step_plan import StepPlan, StepResult
from core.engine.executor import Executor

Around = Callable[["Faulty", StepPlan], StepResult]


class Faulty:
    """An executor with one fault. armed: whether it acts. row: the index in the plan of the row that is hit."""

    def __init__(self, executor: Executor, fault: Around, block_size: int) -> None:
        self.inner = executor
        self.block_size = block_size
        self.fault = fault
        self.armed = False
        self.num_hits = 0
        self.blocks: dict[int, list[list[int]]] = {}
        self.requests: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def execute(self, plan: StepPlan) -> StepResult:
        for new in plan.new:
            self.blocks[new.slot] = [list(table) for table in new.block_ids]
            self.requests[new.slot] = new.request
        for slot, tables in plan.new_block_ids.items():
            for table, more in zip(self.blocks[slot], tables, strict=True):
                table += more
        if not self.armed or len(plan.slots) < 2:
            return self.inner.execute(plan)
        self.num_hits += 1
        return self.fault(self, plan)

    def written(self, plan: StepPlan, index: int, group: int = 0) -> int:
        """The last block that a row writes."""
        last = int(plan.num_computed[index] + plan.query_lens[index] - 1)
        return self.blocks[int(plan.slots[index])][group][last // self.block_size]

    def change(self, block: int, how: Callable[[np.ndarray], np.ndarray]) -> None:
        """Change the bytes of a block."""
        page = self.inner.execute(StepPlan(transfers=KVTransfers(0, [block], []))).pages[0]
        changed = how(np.array(page))
        self.inner.execute(StepPlan(transfers=KVTransfers(0, [], [(block, changed)])))

    def each(self, plan: StepPlan, how: Callable[[np.ndarray], np.ndarray]) -> None:
        for index in range(len(plan.slots)):
            self.change(self.written(plan, index), how)


def flipped(at: float, bit: int) -> Callable[[np.ndarray], np.ndarray]:
    def how(page: np.ndarray) -> np.ndarray:
        page = page.copy()
        page[int(at * (len(page) - 1))] ^= 1 << bit
        return page

    return how


def after(how: Callable[[np.ndarray], np.ndarray]) -> Around:
    """A fault in what a step writes."""

    def fault(faulty: Faulty, plan: StepPlan) -> StepResult:
        result = faulty.inner.execute(plan)
        faulty.each(plan, how)
        return result

    return fault


def tokens(how: Callable[[np.ndarray], np.ndarray]) -> Around:
    """A fault in what is sampled."""

    def fault(faulty: Faulty, plan: StepPlan) -> StepResult:
        result = faulty.inner.execute(plan)
        changed = how(result.token_ids.copy())
        return dataclasses.replace(result, token_ids=changed.astype(np.int32))

    return fault


def positions(faulty: Faulty, plan: StepPlan) -> StepResult:
    """Keys before the row are those of other tokens: its first block is another one while the step runs, and is mended."""
    kept = []
    for index in range(len(plan.slots)):
        block = faulty.blocks[int(plan.slots[index])][0][0]
        if plan.num_computed[index] >= faulty.block_size:
            kept.append((block, faulty.inner.execute(StepPlan(transfers=KVTransfers(0, [block], []))).pages[0]))
    for block, page in kept:
        faulty.change(block, lambda page: np.roll(page, len(page) // 2 + 64))
    result = faulty.inner.execute(plan)
    faulty.inner.execute(StepPlan(transfers=KVTransfers(0, [], kept)))
    return result


def cleared(faulty: Faulty, plan: StepPlan) -> StepResult:
    """A mask that leaves the first block out."""
    kept = []
    for index in range(len(plan.slots)):
        block = faulty.blocks[int(plan.slots[index])][0][0]
        kept.append((block, faulty.inner.execute(StepPlan(transfers=KVTransfers(0, [block], []))).pages[0]))
    for block, _ in kept:
        faulty.change(block, np.zeros_like)
    result = faulty.inner.execute(plan)
    written = {faulty.written(plan, index) for index in range(len(plan.slots))}
    faulty.inner.execute(StepPlan(transfers=KVTransfers(0, [], [each for each in kept if each[0] not in written])))
    return result


def greedy_neighbours(faulty: Faulty, plan: StepPlan) -> StepResult:
    """A step that gives each row the token of another one."""
    result = faulty.inner.execute(plan)
    others = np.roll(result.token_ids, 1)
    others[others == result.token_ids] += 1
    return dataclasses.replace(result, token_ids=others)


def half_lost(page: np.ndarray) -> np.ndarray:
    page = page.copy()
    page[len(page) // 2 :] = 0
    return page


FAULTS: dict[str, Around] = {
    "a bit of a key": after(flipped(0.1, 0)),
    "a bit of a value": after(flipped(0.9, 6)),
    "a sign of one number": after(flipped(0.5, 7)),
    "keys of another place in the block": after(lambda page: np.roll(page, 128)),
    "values that are not written": after(half_lost),
    "a block that is not written": after(np.zeros_like),
    "an overflow in every number": after(lambda page: np.full_like(page, 0x7F)),
    "a token of the next row": greedy_neighbours,
    "a token one too high": tokens(lambda ids: ids + 1),
    "the token of no row": tokens(lambda ids: np.zeros_like(ids) + 3),
    "keys of a stale slot": positions,
    "a mask that leaves tokens out": cleared,
}
