"""The result of a step as one message, on its way back from a worker.

Owns: what travels, and in which columns. Never does: send, or know processes. Called by: executors whose workers are
elsewhere.

Slots that are the plan's are left out: both ends know the plan that a result answers.
"""

from __future__ import annotations

from itertools import chain

import msgspec
import numpy as np

from core.api.messages import TokenLogprobs
from core.api.step_plan import Slot, StepPlan, StepResult
from core.executor.columns import ColumnReader, ColumnWriter, Header, WireError, split


class ResultFacts(msgspec.Struct, array_like=True, omit_defaults=True):
    """What a result says outside of its columns.

    same_slots: the slots are the plan's, and left out.
    has_pages:  the copies of the plan were made.
    errors:     as in `StepResult`.
    """

    same_slots: bool = False
    has_pages: bool = False
    errors: dict[Slot, str] = {}


_RESULTS: msgspec.msgpack.Decoder[Header[ResultFacts]] = msgspec.msgpack.Decoder(Header[ResultFacts])


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
