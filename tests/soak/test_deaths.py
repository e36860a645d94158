"""A connection that ends without an answer is the server's fault, unless a death may have cut it."""

import socket
import threading
from collections.abc import Iterator

import psutil
import pytest

from tests.attack.send import Target
from tests.soak.cases import completion
from tests.soak.clients import Clients
from tests.soak.deaths import Deaths
from tests.soak.site import Site
from tests.soak.tally import Tally


@pytest.fixture
def target() -> Iterator[Target]:
    """A server that hangs up on everybody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def hang_up() -> None:
            while not over.is_set():
                connection, _ = listener.accept()
                connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        yield Target("127.0.0.1", listener.getsockname()[1])
        over.set()
        socket.create_connection(listener.getsockname()).close()
        thread.join()


class OneProcess(Site):
    """A site whose only API process is what is given, and that starts nothing."""

    def __init__(self, process: "Dying") -> None:
        self.deaths = Deaths()
        self._process = process

    def reach(self) -> tuple[Target, int]:
        return self._process.target, self.deaths.mark()

    def api_processes(self) -> list[psutil.Process]:
        return [self._process]  # type: ignore[list-item]  # what a kill asks of it


class Dying:
    """A process that has got its signal and still accepts connections while one waits for its end."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tally = Tally()
        self.clients = Clients(OneProcess(self), self.tally, [], {})
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True

    def wait(self, limit_s: float) -> None:
        assert self.is_killed and limit_s > 0
        self.ask()

    def ask(self) -> None:
        """Rewind a session."""
        self.clients._session("POST", "/v1/sessions/s3/rewind", {"turn": 0})


def test_a_request_that_a_dying_process_still_took_is_cut_by_its_death(target: Target) -> None:
    dying = Dying(target)
    dying.clients.site.kill_api_process(0)
    assert dying.is_killed
    assert dying.tally.wrong == []
    dying.ask()
    assert len(dying.tally.wrong) == 1, "nobody dies any more"
    assert "/v1/sessions/s3/rewind" in dying.tally.wrong[0]


def test_who_insists_asks_a_dying_server_again_and_no_other(target: Target) -> None:
    dying = Dying(target)
    deaths, case = dying.clients.site.deaths, completion("greedy", "Once")
    marks = iter([True, False])
    reach = dying.clients.site.reach

    def reach_once_while_dying() -> tuple[Target, int]:
        if next(marks):
            with deaths.one():
                return reach()
        return reach()

    dying.clients.site.reach = reach_once_while_dying  # type: ignore[method-assign]
    assert dying.clients._insist(case, stream=True, pause_s=0.0) is None
    assert dying.tally.cut == 1
    assert len(dying.tally.lost) == 1


def test_a_death_that_is_over_cuts_nothing_that_came_later() -> None:
    deaths = Deaths()
    early = deaths.mark()
    with deaths.one():
        meanwhile = deaths.mark()
    late = deaths.mark()
    assert deaths.may_have_cut(early)
    assert deaths.may_have_cut(meanwhile)
    assert not deaths.may_have_cut(late)
