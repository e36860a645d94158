"""The table of the lifecycle: every state that can be reached obeys it, and the page prints it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from core.api.errors import EngineDeadError, UtilityError
from core.api.weights import WeightsState
from core_supervision import persistent_flags as lasting
from core_supervision.engine_state import COMPUTING, PARTS, EngineState
from core_supervision.link.anonymous_file import anonymous_file
from core_supervision.persistent_flags import PersistentFlags
from core_supervision.state_keeper import StateKeeper
from core_supervision.state_table import TABLE, EventName, markdown
from core_supervision.state_text import holders_sentence

NEWER = WeightsState(version="1", number=1)
FILES = Path(__file__).parents[2]
Step = tuple[EventName, Callable[[EngineState], EngineState]]


def steps() -> Iterator[Step]:
    """Every event with each of its outcomes, for two clients with a call each."""
    for client in (0, 1):
        yield "wait", lambda state, client=client: state.waited_for(client, 1, 0.0, drains=True)
        yield "wait_idle", lambda state, client=client: state.waited_for(client, 1, 0.0, drains=False).drained()
        yield "let_go", lambda state, client=client: state.let_go(client)
        yield "keep_pause", lambda state, client=client: state.pause_kept(client, 1, 0.0)
    yield "pause", lambda state: state.paused(0.0)
    yield "resume", lambda state: state.resumed()
    yield "drained", lambda state: state.drained()
    for change, event in (("sleep", "begin_sleep"), ("wake", "begin_wake"), ("update", "begin_update")):
        yield event, lambda state, change=change: state.began(change)  # type: ignore[misc]
    yield "slept", lambda state: state.slept(1, 0.0)
    yield "swapped", lambda state: state.swapped(NEWER, ends_gathering=True)
    for missing in ((), ("kv_cache",), PARTS):
        yield "changed", lambda state, missing=missing: state.changed(missing)
    yield "died", lambda state: state.after_death(state.weights)


class Shelf:
    """Keeps records, unless it is full."""

    def __init__(self) -> None:
        self.records: list[EngineState] = []
        self.is_full = False

    def write(self, state: EngineState) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.records.append(state)


def is_possible(event: EventName, state: EngineState) -> bool:
    """Whether the callers of the state keeper let an event happen in this state."""
    if event == "drained":
        return state.drains
    if event == "keep_pause":
        return all(not holder.drains for holder in state.holders) and state.is_paused
    if event in ("slept", "swapped"):
        return state.change == ("sleep" if event == "slept" else "update")
    return True


def test_every_state_that_can_be_reached_obeys_the_table() -> None:
    reached: set[bytes] = set()
    waiting = [EngineState()]
    num_refused = 0
    while waiting:
        before = waiting.pop()
        for event, change in steps():
            shelf = Shelf()
            keeper = StateKeeper(before, shelf, lambda state: None)
            try:
                if is_possible(event, before):
                    keeper.move(event, change)
            except UtilityError:
                num_refused += 1
                assert keeper.state == before
            after = keeper.state
            assert shelf.records in ([], [after])
            if after.phase in COMPUTING:
                assert after.present == PARTS and after.cache_number == after.weights.number and after.change is None
                assert all(holder.drains for holder in after.holders), "nobody else halts what computes"
            if after.phase != "running" and after.phase != "changing":
                assert holders_sentence(after), "who halts the engine can be told"
            after = msgspec.structs.replace(after, holders=tuple(sorted(after.holders, key=repr)))
            key = msgspec.msgpack.encode(after)
            if key not in reached:
                reached.add(key)
                waiting.append(after)
    assert len(reached) > 100 and num_refused > 100


def test_what_the_table_does_not_know_is_a_defect_and_changes_nothing() -> None:
    keeper = StateKeeper(EngineState(), Shelf(), lambda state: None)
    with pytest.raises(EngineDeadError, match="resume led from running to paused"):
        keeper.move("resume", lambda state: state.paused(0.0))
    assert keeper.state == EngineState()


def test_an_intent_that_cannot_be_noted_is_refused_and_a_report_is_not() -> None:
    shelf = Shelf()
    told: list[EngineState] = []
    keeper = StateKeeper(EngineState(), shelf, told.append)
    keeper.move("pause", lambda state: state.paused(1.0))
    shelf.is_full = True
    with pytest.raises(UtilityError, match=r"no memory to note begin_sleep .*nothing has changed"):
        keeper.move("begin_sleep", lambda state: state.began("sleep"))
    assert keeper.state.phase == "paused"
    keeper.move("resume", lambda state: state.resumed())
    assert (keeper.state.phase, keeper.recorded.phase) == ("running", "paused")
    keeper.record_again()
    assert not keeper.is_recorded
    shelf.is_full = False
    keeper.record_again()
    assert keeper.is_recorded and shelf.records[-1].phase == "running"
    keeper.move("pause", lambda state: state.paused(2.0))
    assert keeper.recorded == keeper.state
    assert [state.phase for state in told] == ["paused", "running", "paused"]


def test_a_death_between_any_two_writes_leaves_a_whole_record(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    for fatal in range(1, 9):
        file = anonymous_file("test-lasting", 0)
        num_writes = 0

        def dying(descriptor: int, raw: bytes, offset: int, fatal: int = fatal) -> int:
            nonlocal num_writes
            num_writes += 1
            if num_writes == fatal:
                write(descriptor, bytes(raw)[: len(raw) // 2], offset)
                raise KeyboardInterrupt
            return write(descriptor, raw, offset)

        monkeypatch.setattr(os, "pwrite", dying)
        storage = PersistentFlags(file)
        written: list[EngineState | None] = [None]
        try:
            for level in range(4):
                state = EngineState(sleep_level=level, weights=WeightsState(version="v" * level))
                storage.write(state)
                written.append(state)
        except KeyboardInterrupt:
            pass
        assert lasting.read(file) == written[-1]
        os.close(file)


def test_the_page_prints_the_table() -> None:
    page = (FILES / "docs" / "failures.md").read_text(encoding="utf-8")
    assert markdown() in page, "put the output of core_supervision.state_table.markdown() into docs/failures.md"
    assert len(markdown().splitlines()) > len(TABLE)
