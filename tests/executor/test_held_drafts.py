"""A plan that was made before the worker knew how long its sequences are."""

from unittest.mock import Mock

import numpy as np
import pytest

from core.api.step_plan import StepPlan
from core_runtime.executor.drafts.pending import PendingDrafts
from core_runtime.executor.model_runner import ModelRunner
from core_runtime.executor.steps.token_table import TokenTable

SLOTS = (4, 1, 7)
MAX_LENGTH = 12


@pytest.fixture
def tokens() -> TokenTable:
    """Three sequences of five known tokens."""
    table = TokenTable(8, 16)
    for slot in SLOTS:
        table.start(slot, [10, 11, 12], [13, 14])
    return table


@pytest.fixture
def held(tokens: TokenTable) -> PendingDrafts:
    drafts = PendingDrafts(8, tokens)
    for slot in SLOTS:
        drafts.start(slot, MAX_LENGTH)
    return drafts


def plan(query_lens: tuple[int, ...], num_computed: tuple[int, ...], **num_drafts: int) -> StepPlan:
    """num_drafts: of `slot4`, `slot1` and `slot7`."""
    made = StepPlan(np.array(SLOTS, np.int32), np.array(query_lens, np.int32), np.array(num_computed, np.int32))
    made.total_num_tokens = sum(query_lens)
    made.num_drafts = {int(name.removeprefix("slot")): count for name, count in num_drafts.items()}
    return made


def rows(settled: StepPlan) -> dict[int, tuple[int, int]]:
    """Tokens to compute and computed tokens, by slot."""
    lens = settled.query_lens.tolist()
    computed = settled.num_computed.tolist()
    return dict(zip(settled.slots.tolist(), zip(lens, computed, strict=True), strict=True))


def test_rows_go_on_from_what_is_known_with_the_drafts_that_there_are(held: PendingDrafts) -> None:
    """The scheduler takes the first two to have 3 tokens and up to 3 drafts; they have 5, and 2 or none."""
    assert held.hold({4: [20, 21]}) == {4: 2}
    settled, drafts = held.settle(plan((4, 4, 1), (2, 2, 4), slot4=3, slot1=3))
    assert drafts == {4: [20, 21]}
    assert rows(settled) == {4: (3, 4), 1: (1, 4), 7: (1, 4)}
    assert settled.total_num_tokens == 5


@pytest.mark.parametrize(("max_length", "is_replaced"), [(6, False), (MAX_LENGTH, True)], ids=["no room", "room"])
def test_forced_text_replaces_the_proposers_drafts_only_where_it_fits(
    held: PendingDrafts, tokens: TokenTable, max_length: int, is_replaced: bool
) -> None:
    held.start(4, max_length)
    batch = Mock(drafts=held, tokens=tokens, undrafted=set(), masks={4: Mock(forced=lambda output: [30, 31])})
    runner = Mock(batch=batch, most_forced=8)
    proposed = {4: [20]}
    ModelRunner._propose_forced(runner, Mock(draft_budget={}), Mock(slots=np.array([4])), proposed)
    assert proposed == {4: [30, 31] if is_replaced else [20]}
    assert batch.columns.forget_drawn.called == is_replaced


def test_no_more_drafts_are_verified_than_the_plan_has_room_for(held: PendingDrafts) -> None:
    held.hold({4: [20, 21, 22], 1: [23, 24]})
    settled, drafts = held.settle(plan((2, 1, 1), (4, 4, 4), slot4=1, slot1=0))
    assert drafts == {4: [20]}
    assert rows(settled) == {4: (2, 4), 1: (1, 4), 7: (1, 4)}


def test_known_tokens_behind_a_state_are_computed_with_the_drafts(held: PendingDrafts) -> None:
    """The state is that behind two tokens: three known ones come before the drafts."""
    held.hold({4: [20, 21]})
    settled, _ = held.settle(plan((5, 1, 1), (2, 4, 4), slot4=2))
    assert rows(settled)[4] == (5, 2)


def test_a_sequence_that_has_all_its_tokens_computes_nothing(held: PendingDrafts, tokens: TokenTable) -> None:
    tokens.extend_one(1, [0] * (MAX_LENGTH - 5))
    settled, _ = held.settle(plan((1, 2, 1), (4, 9, 4), slot1=1))
    assert rows(settled) == {4: (1, 4), 7: (1, 4)}
    assert settled.total_num_tokens == 2


def test_drafts_end_before_the_sequence_does(held: PendingDrafts, tokens: TokenTable) -> None:
    """The last place is for the token that verifying them samples."""
    tokens.extend_one(4, [0] * (MAX_LENGTH - 8))
    assert held.room(4, 5) == 2
    assert held.hold({4: [1, 2, 3], 1: []}) == {4: 2}
    tokens.extend_one(4, [0] * 2)
    assert held.hold({4: [1, 2, 3]}) == {}


def test_drafts_that_a_step_passes_over_are_gone(held: PendingDrafts) -> None:
    """They were proposed for a position that is known by then."""
    held.hold({4: [20], 1: [21]})
    assert held.settle(plan((1, 1, 1), (4, 4, 4)))[1] == {}
    assert held.settle(plan((2, 2, 1), (4, 4, 4), slot4=1, slot1=1))[1] == {}


def test_drafts_wait_for_the_next_step_of_their_sequence(held: PendingDrafts) -> None:
    held.hold({4: [20]})
    others = plan((1, 1, 1), (4, 4, 4))
    others.slots = np.array([1, 7], np.int32)
    held.settle(others)
    assert held.settle(plan((2, 1, 1), (4, 4, 4), slot4=1))[1] == {4: [20]}


def test_drafts_leave_with_their_sequence(held: PendingDrafts) -> None:
    held.hold({4: [20]})
    held.end(4)
    held.start(4, MAX_LENGTH)
    assert held.settle(plan((2, 1, 1), (4, 4, 4), slot4=1))[1] == {}
