"""A step as one message: the plan on its way to a worker, the result on its way back.

Owns: what travels, and in which columns. Never does: send, or know processes. Called by: executors whose workers are
elsewhere.

A plan of the same batch as the one before says only that: the worker's end knows the slots, and how far each sequence
has got. So a plan of steady decode has a few bytes, whatever the number of sequences, and the blocks that are new.
"""

from __future__ import annotations

from itertools import chain

import msgspec
import numpy as np

from core.api.kv_transfer import KVTransfers
from core.api.messages import NO_HANDLE, EngineRequest, TokenLogprobs
from core.api.step_plan import NO_ROWS, Int32Array, NewSequence, Slot, StepPlan, StepResult
from core.executor.columns import ColumnReader, ColumnWriter, Header, WireError, split


class PlanFacts(msgspec.Struct, array_like=True, omit_defaults=True):
    """What a plan says outside of its columns.

    same_batch: as in `StepPlan`; slots and lengths are left out.
    goes_on:    every sequence continues where the plan before left it; `num_computed` is left out.
    transfers:  the number of the copies that come along; None: there are none.
    requests:   of the new sequences, without their tokens.
    """

    total_num_tokens: int = 0
    same_batch: bool = False
    goes_on: bool = False
    transfers: int | None = None
    requests: list[EngineRequest] = []


class ResultFacts(msgspec.Struct, array_like=True, omit_defaults=True):
    """What a result says outside of its columns.

    same_slots: the slots are the plan's, and left out.
    has_pages:  the copies of the plan were made.
    errors:     as in `StepResult`.
    """

    same_slots: bool = False
    has_pages: bool = False
    errors: dict[Slot, str] = {}


_PLANS: msgspec.msgpack.Decoder[Header[PlanFacts]] = msgspec.msgpack.Decoder(Header[PlanFacts])
_RESULTS: msgspec.msgpack.Decoder[Header[ResultFacts]] = msgspec.msgpack.Decoder(Header[ResultFacts])


class PlanEncoder:
    """The scheduler's end. Plans are encoded in their order, and each message is meant for every worker."""

    def __init__(self) -> None:
        self._expected: Int32Array = NO_ROWS

    def encode(self, plan: StepPlan) -> bytes:
        """One plan. What cannot be encoded raises, and leaves the encoder as it was."""
        columns = ColumnWriter()
        same_batch = plan.same_batch and len(self._expected) == len(plan.slots)
        goes_on = same_batch and np.array_equal(plan.num_computed, self._expected)
        facts = PlanFacts(plan.total_num_tokens, same_batch, goes_on)
        if not same_batch:
            columns.put("slots", plan.slots)
            columns.put("query_lens", plan.query_lens)
        if not goes_on:
            columns.put("num_computed", plan.num_computed)
        columns.put("removed", plan.removed)
        columns.put_keys("blocks", plan.new_block_ids)
        columns.put_tables("blocks", plan.new_block_ids.values())
        columns.put_keys("drafts", plan.drafts)
        columns.put_lists("drafts", plan.drafts.values())
        columns.put_keys("budget", plan.draft_budget)
        columns.put("budget", list(plan.draft_budget.values()))
        if plan.new:
            facts.requests = [_without_tokens(new.request) for new in plan.new]
            _put_new(columns, plan.new)
        if plan.transfers is not None:
            facts.transfers = plan.transfers.number
            _put_transfers(columns, plan.transfers)
        message = columns.message(facts)
        if len(plan.slots):
            self._expected = plan.num_computed + plan.query_lens
        return message


class PlanDecoder:
    """A worker's end. Messages are decoded in the order in which they were encoded."""

    def __init__(self) -> None:
        self._slots = NO_ROWS
        self._expected = NO_ROWS

    def decode(self, message: bytes) -> StepPlan:
        """One plan. Raises WireError when it goes on from one that never came."""
        columns = ColumnReader(message, _PLANS)
        facts = columns.facts
        if facts.same_batch:
            self._check_batch(facts.total_num_tokens)
            slots = self._slots
            query_lens = np.ones(len(slots), np.int32)
        else:
            slots = columns.get("slots")
            query_lens = columns.get("query_lens")
        num_computed = self._expected if facts.goes_on else columns.get("num_computed")
        if not len(slots) == len(query_lens) == len(num_computed):
            raise WireError(f"A plan has {len(slots)} slots, {len(query_lens)} and {len(num_computed)} lengths.")
        tables = columns.tables("blocks")
        drafts = columns.lists("drafts")
        budgets = columns.items("budget")
        plan = StepPlan(slots, query_lens, num_computed)
        plan.total_num_tokens = facts.total_num_tokens
        plan.same_batch = facts.same_batch
        plan.removed = columns.items("removed")
        plan.new = _get_new(columns, facts.requests)
        plan.new_block_ids = columns.keyed("blocks", tables)
        plan.drafts = columns.keyed("drafts", drafts)
        plan.draft_budget = columns.keyed("budget", budgets)
        if facts.transfers is not None:
            plan.transfers = _get_transfers(columns, facts.transfers)
        if len(slots):
            self._slots = slots
            self._expected = num_computed + query_lens
        return plan

    def _check_batch(self, num_seqs: int) -> None:
        if len(self._slots) != num_seqs:
            raise WireError(
                f"A plan repeats the {num_seqs} sequences of the one before it, which had {len(self._slots)} here: "
                "a plan was lost on the way."
            )


def encode_result(result: StepResult, plan: StepPlan) -> bytes:
    """One result. plan: the one that it answers."""
    columns = ColumnWriter()
    same_slots = result.same_slots or np.array_equal(result.slots, plan.slots)
    facts = ResultFacts(same_slots, result.pages is not None, result.errors)
    if not same_slots:
        columns.put("slots", result.slots)
    columns.put("token_ids", result.token_ids)
    columns.put_keys("more", result.more_token_ids)
    columns.put_lists("more", result.more_token_ids.values())
    columns.put_keys("drafts", result.drafts)
    columns.put_lists("drafts", result.drafts.values())
    _put_logprobs(columns, "logprobs", result.logprobs)
    _put_logprobs(columns, "prompt", result.prompt_logprobs)
    columns.put_bytes("pages", result.pages or [])
    return columns.message(facts)


def decode_result(message: bytes, plan: StepPlan) -> StepResult:
    """The result that `encode_result` was given. plan: the one that it answers."""
    columns = ColumnReader(message, _RESULTS)
    facts = columns.facts
    slots = plan.slots if facts.same_slots else columns.get("slots")
    result = StepResult(slots, columns.get("token_ids"))
    if len(result.slots) != len(result.token_ids):
        raise WireError(f"A result has {len(result.token_ids)} tokens for {len(result.slots)} sequences.")
    more_token_ids = columns.lists("more")
    drafts = columns.lists("drafts")
    result.same_slots = facts.same_slots
    result.errors = facts.errors
    result.more_token_ids = columns.keyed("more", more_token_ids)
    result.drafts = columns.keyed("drafts", drafts)
    result.logprobs = _get_logprobs(columns, "logprobs")
    result.prompt_logprobs = _get_logprobs(columns, "prompt")
    if facts.has_pages:
        result.pages = columns.byte_arrays("pages")
    return result


def _without_tokens(request: EngineRequest) -> EngineRequest:
    """The part of a request that a worker reads and that is no column: a worker needs not know who asked, and when."""
    return msgspec.structs.replace(
        request,
        prompt_token_ids=[],
        allowed_ids=b"",
        arrival_time=0.0,
        priority=0,
        cache_salt=None,
        user="",
        resume=None,
        deadline=0.0,
        handle=NO_HANDLE,
    )


def _put_new(columns: ColumnWriter, sequences: list[NewSequence]) -> None:
    """Add the new sequences, a row each, without what travels in their requests."""
    slots = [new.slot for new in sequences]
    num_computed = [new.num_computed_tokens for new in sequences]
    prompts = [new.request.prompt_token_ids for new in sequences]
    outputs = [new.output_token_ids for new in sequences]
    tables = [new.block_ids for new in sequences]
    allowed = [new.request.allowed_ids for new in sequences]
    columns.put("new.slots", slots)
    columns.put("new.num_computed", num_computed)
    columns.put_lists("new.prompt", prompts)
    columns.put_lists("new.output", outputs)
    columns.put_tables("new.blocks", tables)
    columns.put_bytes("new.allowed", allowed)


def _get_new(columns: ColumnReader[PlanFacts], requests: list[EngineRequest]) -> list[NewSequence]:
    """The sequences that `_put_new` was given. requests: theirs, whose tokens are put back."""
    if not requests:
        return []
    prompts = columns.lists("new.prompt")
    allowed = columns.byte_arrays("new.allowed")
    for request, token_ids, allowed_ids in zip(requests, prompts, allowed, strict=True):
        request.prompt_token_ids = token_ids
        request.allowed_ids = allowed_ids.tobytes()
    slots = columns.items("new.slots")
    outputs = columns.lists("new.output")
    num_computed = columns.items("new.num_computed")
    tables = columns.tables("new.blocks")
    rows = zip(slots, requests, outputs, num_computed, tables, strict=True)
    return [NewSequence(*row) for row in rows]


def _put_transfers(columns: ColumnWriter, transfers: KVTransfers) -> None:
    """Add the blocks to save, and the blocks to load with their pages."""
    loaded = [block_id for block_id, _ in transfers.loads]
    pages = [page for _, page in transfers.loads]
    columns.put("saves", transfers.saves)
    columns.put("loads", loaded)
    columns.put_bytes("pages", pages)


def _get_transfers(columns: ColumnReader[PlanFacts], number: int) -> KVTransfers:
    """The copies that `_put_transfers` was given."""
    saves = columns.items("saves")
    loaded = columns.items("loads")
    pages = columns.byte_arrays("pages")
    loads = list(zip(loaded, pages, strict=True))
    return KVTransfers(number, saves, loads)


def _put_logprobs(columns: ColumnWriter, name: str, logprobs: dict[Slot, list[TokenLogprobs]]) -> None:
    """Entries of some slots: how many each has, then all of them, one after the other."""
    if not logprobs:
        return
    entries = list(chain.from_iterable(logprobs.values()))
    token_ids = [entry.token_ids for entry in entries]
    values = [entry.logprobs for entry in entries]
    ranks = [entry.ranks for entry in entries]
    lens = [len(ids) for ids in token_ids]
    num_values = [len(row) for row in values]
    num_ranks = [len(row) for row in ranks]
    if not lens == num_values == num_ranks:
        raise WireError("Logprobs need as many numbers and ranks as token ids.")
    counts = [len(listed) for listed in logprobs.values()]
    columns.put_keys(name, logprobs)
    columns.put(f"{name}.counts", counts)
    columns.put_lists(f"{name}.token_ids", token_ids)
    columns.put(f"{name}.values", list(chain.from_iterable(values)), "f8")
    columns.put(f"{name}.ranks", list(chain.from_iterable(ranks)))


def _get_logprobs(columns: ColumnReader[ResultFacts], name: str) -> dict[Slot, list[TokenLogprobs]]:
    """The entries that `_put_logprobs` was given."""
    counts = columns.items(f"{name}.counts")
    if not counts:
        return {}
    token_ids = columns.lists(f"{name}.token_ids")
    lens = [len(ids) for ids in token_ids]
    values = split(columns.items(f"{name}.values"), lens)
    ranks = split(columns.items(f"{name}.ranks"), lens)
    entries = [TokenLogprobs(*row) for row in zip(token_ids, values, ranks, strict=True)]
    return columns.keyed(name, split(entries, counts))
