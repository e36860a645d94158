"""The stand-in for everything that computes: tokens follow from (weights, prompt, index), and each cached position names the
weights and the tokens that it was made of.

Owns: `SimExecutor`, with the batch and the KV cache of a worker. Never does: know the scheduler, or forgive it: a read of a
position that holds anything but its own prefix under the weights in use is a violation. Called by: the engine core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core.api.adapters import AdapterFacts, AdapterSource
from core.api.config import EngineConfig
from core.api.messages import EngineRequest
from core.api.step_plan import StepPlan, StepResult
from tests.simulation.adapters import facts_of
from tests.simulation.weights import Weights, next_digest, token_of

if TYPE_CHECKING:
    from tests.simulation.engine import SimEngineProcess

EMPTY = -1
"""What a position holds that was never written, or was given back."""

MOST_SKIPPED = 4
"""Steps in a row with drafts in which a sequence that generates may be left out."""


class Row:
    """One sequence of the batch. digests: of its prefixes under the weights with the number `seed`."""

    __slots__ = ("blocks", "computed", "digests", "drafts", "max_length", "request", "seed", "skipped", "tokens")

    def __init__(
        self, request: EngineRequest, tokens: list[int], computed: int, blocks: list[int], max_length: int
    ) -> None:
        self.request = request
        self.tokens = tokens
        self.computed = computed
        self.blocks = blocks
        self.max_length = max_length
        self.drafts: list[int] = []
        self.digests: list[int] = []
        self.seed = 0
        self.skipped = 0

    def prefixes(self, tokens: list[int], weights: Weights) -> list[int]:
        """The digest of each prefix of these tokens."""
        weights = weights.adapted(self.request.adapter)
        digests = self.digests
        if self.seed != weights.seed or len(digests) > len(self.tokens):
            digests = self.digests = []
            self.seed = weights.seed
        state = digests[-1] if digests else weights.seed
        for token in tokens[len(digests) :]:
            state = next_digest(state, token)
            digests.append(state)
        return digests[: len(tokens)]

    def forget_drafts(self, num_tokens: int) -> None:
        """Only the digests of these first tokens are those of tokens that stay."""
        del self.digests[num_tokens:]


class SimExecutor:
    """Follows plans as a worker does. process: that it is part of."""

    numerics = "simulated"

    def __init__(self, config: EngineConfig, process: SimEngineProcess) -> None:
        self.block_size = config.cache.block_size
        self.page_bytes = self.block_size * 8
        self.num_blocks = config.cache.num_blocks or 64
        self.phases: list[tuple[str, float]] = []
        self.max_in_flight = 2 if config.scheduler.async_scheduling else 0
        self.process = process
        self.world = process.world
        self.rows: dict[int, Row] = {}
        self.cache: list[list[int]] = []
        self.weights = Weights.of(config.weights.sources)
        self.adapters: set[str] = set()
        self.placed: set[str] = set()
        self._accuracy = 0.6
        from tests.simulation.reloader import SimReloader

        self.reloader = SimReloader(self, config)

    def execute(self, plan: StepPlan) -> StepResult:
        process = self.process
        process.point("step.begin")
        process.spend(process.world.step_s * (0.5 + process.world.loop.draw()))
        result = self._compute(plan)
        process.point("step.end")
        return result

    def submit(self, plan: StepPlan) -> list[StepResult | Exception]:
        self.process.point("submit")
        try:
            return [self._compute(plan)]
        except Exception as error:
            return [error]

    def result(self, ticket: list[StepResult | Exception]) -> StepResult:
        process = self.process
        process.point("step.begin")
        process.spend(process.world.step_s * (0.5 + process.world.loop.draw()))
        (result,) = ticket
        if isinstance(result, Exception):
            raise result
        process.point("step.end")
        return result

    def close(self) -> None:
        pass

    def read_adapter(self, source: AdapterSource) -> AdapterFacts:
        self.process.point("read_adapter")
        if self.reloader.missing:
            self.world.violated("adapter", f"{source.name} is read while memory is given back")
        facts = facts_of(source.name)
        self.adapters.add(facts.digest)
        return facts

    def place_adapter(self, digest: str) -> None:
        if digest not in self.adapters:
            self.world.violated("adapter", f"{digest} is placed and was not read")
        self.placed.add(digest)
        if len(self.placed) > 2:
            self.world.violated("adapter", f"{len(self.placed)} adapters are placed, two may be")

    def drop_adapter(self, digest: str) -> None:
        self.adapters.discard(digest)
        self.placed.discard(digest)

    def use(self, weights: Weights) -> None:
        """Compute with these from now on."""
        self.weights = weights

    def allocate(self) -> None:
        """An empty cache."""
        self.cache = [[EMPTY] * self.block_size for _ in range(self.num_blocks)]

    def free(self) -> None:
        """Give the cache back."""
        self.cache = []

    def _compute(self, plan: StepPlan) -> StepResult:
        rows = self.rows
        for slot in plan.removed:
            rows.pop(slot, None)
        missing = self.reloader.missing
        if missing and (plan.total_num_tokens or plan.transfers is not None):
            self.world.violated("missing", f"a step came while {', '.join(sorted(missing))} had been given back")
            raise RuntimeError("parts of the memory are missing")
        for new in plan.new:
            tokens = new.request.prompt_token_ids + new.output_token_ids
            rows[new.slot] = Row(new.request, tokens, new.num_computed_tokens, list(new.block_ids[0]), new.max_length)
        for slot, groups in plan.new_block_ids.items():
            rows[slot].blocks += groups[0]
        if plan.num_drafts:
            self._watch_shares(plan)
        result = StepResult()
        if plan.transfers is not None:
            self._copy(plan, result)
        self._run(plan, result)
        return result

    def _watch_shares(self, plan: StepPlan) -> None:
        """Nobody waits for the next token because others have drafts."""
        planned = set(plan.slots.tolist())
        for slot, row in self.rows.items():
            decodes = row.computed == len(row.tokens) - 1
            # The batch class is left out of steps that others fill.
            row.skipped = 0 if slot in planned or not decodes or row.request.flex else row.skipped + 1
            if row.skipped > MOST_SKIPPED:
                self.world.violated("starved", f"{row.request.request_id} waits while others have drafts")
                row.skipped = 0

    def _copy(self, plan: StepPlan, result: StepResult) -> None:
        transfers = plan.transfers
        assert transfers is not None
        result.pages = [np.array(self.cache[block], np.int64).view(np.uint8) for block in transfers.saves]
        for block, page in transfers.loads:
            self.cache[block] = page.view(np.int64).tolist()

    def _run(self, plan: StepPlan, result: StepResult) -> None:
        used = {self.rows[slot].request.adapter for slot in plan.slots.tolist()} - {""}
        if len(used) > 1 or not used <= self.placed:
            self.world.violated("adapter", f"a step uses {sorted(used)}, and {sorted(self.placed)} are placed")
        written = []
        columns = (plan.slots.tolist(), plan.query_lens.tolist(), plan.num_computed.tolist())
        for slot, count, computed in zip(*columns, strict=True):
            row = self.rows[slot]
            drafts, row.drafts = row.drafts, []
            if slot in plan.num_drafts:
                if len(row.tokens) >= row.max_length:
                    continue
                most = plan.num_drafts[slot]
                drafts = drafts[:most]
                known = count - most
                count, computed = known + len(drafts), len(row.tokens) - known
            else:
                drafts = []
            tokens = (row.tokens + drafts)[: computed + count]
            written.append((slot, row, tokens, drafts, self._write(row, tokens, computed)))
        slots, sampled = [], []
        for slot, row, tokens, drafts, digests in written:
            self._read(row, digests)
            if drafts:
                result.num_verified[slot] = len(drafts)
            new = self._sample(row, tokens, drafts, digests)
            row.computed = len(tokens) if not new else len(row.tokens) - 1
            if not new:
                continue
            slots.append(slot)
            sampled.append(new[0])
            if len(new) > 1:
                result.more_token_ids[slot] = new[1:]
            self._propose(plan, slot, row, result)
        result.slots = np.array(slots, np.int32)
        result.token_ids = np.array(sampled, np.int32)

    def _write(self, row: Row, tokens: list[int], computed: int) -> list[int]:
        digests = row.prefixes(tokens, self.weights)
        size = self.block_size
        for position in range(computed, len(tokens)):
            self.cache[row.blocks[position // size]][position % size] = digests[position]
        return digests

    def _read(self, row: Row, digests: list[int]) -> None:
        size = self.block_size
        for index in range(0, len(digests), size):
            wanted = digests[index : index + size]
            held = self.cache[row.blocks[index // size]][: len(wanted)]
            if held != wanted:
                what = "was never written" if EMPTY in held else "is of other weights or tokens"
                name = row.request.request_id
                self.world.violated("cache", f"{name} reads a block of positions {index} on that {what}")
                return

    def _sample(self, row: Row, tokens: list[int], drafts: list[int], digests: list[int]) -> list[int]:
        """The new tokens; none in the middle of the prompt."""
        if len(tokens) < len(row.tokens):
            return []
        choice = row.request.choice
        base = len(tokens) - len(drafts)
        new = [token_of(digests[base - 1], choice)]
        while len(new) <= len(drafts) and new[-1] == drafts[len(new) - 1]:
            new.append(token_of(digests[base - 1 + len(new)], choice))
        row.forget_drafts(base + len(new) - 1)
        row.tokens = row.tokens + new
        return new

    def _propose(self, plan: StepPlan, slot: int, row: Row, result: StepResult) -> None:
        budget = min(plan.draft_budget.get(slot, 0), row.max_length - len(row.tokens) - 1)
        if budget <= 0:
            return
        draw = self.world.loop.draw
        state = row.prefixes(row.tokens, self.weights)[-1]
        drafts: list[int] = []
        for _ in range(int(draw() * (budget + 1))):
            right = token_of(state, row.request.choice)
            drafts.append(right if draw() < self._accuracy else right + 1)
            state = next_digest(state, drafts[-1])
        row.drafts = drafts
        if drafts:
            result.num_proposed[slot] = len(drafts)
