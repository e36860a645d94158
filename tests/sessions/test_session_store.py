"""The memory of sessions: lifetimes, bytes, and answers that come too late."""

from array import array

from core_apis.sessions import store
from core_apis.sessions.store import Session, Sessions
from core_formats.server_limits import ServerLimits
from core_frontend.sessions.turns import Turn
from tests.sessions.clock import Clock


def turn(size: int = 4) -> Turn:
    return Turn(None, 0, array("i", [7] * size), 2, 3, b"", False)


def answered(sessions: Sessions, name: str, size: int = 4) -> Session:
    session = sessions.begin(0, name)
    sessions.keep(0, session, session.version, turn(size))
    sessions.end(0, session)
    return session


def test_unused_sessions_go_but_not_those_that_run() -> None:
    clock = Clock()
    sessions = Sessions(ServerLimits(kv_session_lifetime=10.0), clock)
    answered(sessions, "old")
    running = sessions.begin(0, "running")
    clock.now = 8.0
    answered(sessions, "new")
    clock.now = 12.0
    assert list(sessions.of(0)) == ["running", "new"]
    sessions.end(0, running)
    assert list(sessions.of(0)) == ["new"], "a session without any turn goes with its request"


def test_the_longest_unused_go_where_a_key_has_too_much() -> None:
    sessions = Sessions(ServerLimits(), Clock())
    size = store.MAX_BYTES_PER_KEY // 4 // 3 + 1000
    for name in "abc":
        answered(sessions, name, size)
    assert list(sessions.of(0)) == ["b", "c"]
    sessions.fork(0, "b", "d")
    assert list(sessions.of(0)) == ["b", "d"]


def test_an_answer_from_before_a_rewind_or_a_deletion_is_no_turn() -> None:
    sessions = Sessions(ServerLimits(), Clock())
    session = answered(sessions, "a")
    version = session.version
    sessions.rewind(0, "a", 1)
    sessions.keep(0, session, version, turn())
    assert len(session.turns) == 1
    sessions.remove(0, "a")
    sessions.keep(0, session, session.version, turn())
    assert not sessions.of(0)
