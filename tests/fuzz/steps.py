"""Plans and results of steps, whole and damaged.

Owns: good messages of both kinds, and the readers of a folder of them. Never does: damage anything.
Called by: the table of targets.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from core.api.errors import CoreError
from core.api.kv_transfer import KVTransfers
from core.api.messages import EngineRequest, TokenLogprobs
from core.api.sampling_params import SamplingParams
from core.api.step_plan import NewSequence, StateCopy, StepPlan, StepResult
from core.api.structured_outputs import CompiledGrammar
from core_kv_connectors.shared_pages import PagePart, SharedPages
from core_runtime.executor.steps.columns import WireError
from core_runtime.executor.steps.plan_wire import PlanDecoder, PlanEncoder
from core_runtime.executor.steps.result_wire import decode_result, encode_result
from core_supervision.link.anonymous_file import anonymous_file

PAGE = np.arange(20, dtype=np.uint8)
PAGE_BYTES = PAGE.nbytes


class Refused(CoreError):
    """The wire says that this is no message."""


def int32(*numbers: int) -> np.ndarray:
    """A column."""
    return np.array(numbers, np.int32)


def make_plans(folder: Path) -> None:
    """A plan with everything that a plan may have, and the one after it, which repeats the batch."""
    first = _rich_plan()
    with _shared_file() as descriptor:
        first.transfers = SharedPages(descriptor, PAGE_BYTES).placed(KVTransfers(5, [1, 2], [(3, PAGE), (4, PAGE)]))
    second = StepPlan(first.slots, first.query_lens, first.num_computed + first.query_lens)
    second.total_num_tokens = 3
    second.same_batch = True
    encoder = PlanEncoder()
    (folder / "1-plan").write_bytes(encoder.encode(first))
    (folder / "2-plan").write_bytes(encoder.encode(second))


def _rich_plan() -> StepPlan:
    params = SamplingParams(temperature=0.5, logprobs=2, logit_bias={5: 1.0}, extra_args={"plugin": [1, None]})
    allowed = np.arange(9, dtype=np.int64).tobytes()
    grammar = CompiledGrammar("llguidance", "key", b"grammar")
    request = EngineRequest("a", 0, [1, 2, 3], params, 7, [4], [4], [[5, 6]], allowed, grammar=grammar)
    plan = StepPlan(int32(0, 2, 3), int32(1, 1, 1), int32(9, 4, 2))
    plan.total_num_tokens = 3
    plan.removed = [7, 8]
    plan.new = [NewSequence(3, request, [10, 11], 0, [[1, 2], [3]], 9)]
    plan.new_block_ids = {0: [[4], [5]], 2: [[6], []]}
    plan.num_drafts = {0: 2}
    plan.draft_budget = {2: 3}
    plan.copies = [StateCopy([1, 2], [3, 4])]
    plan.moved_states = {2: [[], [8, 9]]}
    return plan


def read_plans(folder: Path) -> None:
    """A worker's end. Raises Refused."""
    with _shared_file() as descriptor, _refusing():
        SharedPages(descriptor, PAGE_BYTES).take()  # there are places
        decoder = PlanDecoder(PagePart(descriptor, PAGE_BYTES, 0, PAGE_BYTES))
        for path in sorted(folder.iterdir()):
            decoder.decode(path.read_bytes())


def make_results(folder: Path) -> None:
    """A result with everything that a result may have, and a plain one."""
    scores = TokenLogprobs([1, 2], [-0.5, -1.5], [1, 2])
    rich = StepResult(int32(0, 2), int32(5, 6))
    rich.more_token_ids = {0: [7, 8]}
    rich.num_verified = {0: 2}
    rich.num_proposed = {2: 1}
    rich.logprobs = {0: [scores, scores]}
    rich.prompt_logprobs = {2: [scores]}
    rich.errors = {1: "a sentence"}
    plan = _answered()
    plain = StepResult(plan.slots, int32(1, 2, 3))
    (folder / "1-result").write_bytes(encode_result(rich, plan))
    (folder / "2-result").write_bytes(encode_result(plain, plan))


def read_results(folder: Path) -> None:
    """The scheduler's end. Raises Refused."""
    plan = _answered()
    with _refusing():
        for path in sorted(folder.iterdir()):
            decode_result(path.read_bytes(), plan)


@contextmanager
def _shared_file() -> Iterator[int]:
    """The memory of pages, which every worker sees."""
    descriptor = anonymous_file("fuzz-pages", 0)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _answered() -> StepPlan:
    """The plan that results answer."""
    return StepPlan(slots=int32(0, 1, 2), query_lens=int32(1, 1, 1), num_computed=int32(5, 6, 7))


@contextmanager
def _refusing() -> Iterator[None]:
    """The refusal that the wire documents; anything else is a finding."""
    try:
        yield
    except WireError as error:
        raise Refused(str(error)) from error
