"""Adapters on ranks that are played by hand: all ranks place one, or none, whatever a rank reads and when."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from core.api.adapters import AdapterFacts, AdapterSource
from core.api.errors import UserError
from core.api.weights import WeightsState
from core_distributed.adapters import LeadingAdapters, RankAdapters, Reading
from core_distributed.calls import Call, Outcome, perform

FIRST, SECOND = AdapterSource("first", "/first"), AdapterSource("second", "/second")


class Placed:
    """The places of one rank. kept: what was read. rows: what steps may use."""

    def __init__(self) -> None:
        self.kept: set[str] = set()
        self.rows: dict[str, int] = {}

    def find(self, digest: str) -> str | None:
        return digest if digest in self.kept else None

    def place(self, digest: str) -> None:
        if len(self.rows) == 2:
            raise UserError("All 2 places of adapters are taken.")
        self.rows[digest] = len(self.rows)

    def drop(self, digest: str) -> None:
        self.kept.discard(digest)
        self.rows.pop(digest, None)


class Rank:
    """A worker whose files are a mapping from paths to digests; a missing one cannot be read."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self.there = Placed()
        self.reads: list[str] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.adapters = RankAdapters(self, WeightsState)  # type: ignore[arg-type]
        self.reloader: Any = type("Awake", (), {"missing": frozenset()})()

    def placed(self) -> Placed:
        return self.there

    def read_adapter(self, source: AdapterSource, state: WeightsState) -> AdapterFacts:
        self.goes_on.wait(10)
        self.reads.append(source.path)
        if source.path not in self.files:
            raise UserError(f"{source.path} holds no adapter.")
        digest = self.files[source.path]
        self.there.kept.add(digest)
        return AdapterFacts(digest, 8, 100)


class Engine:
    """Rank 0 and others, which do what they are told at once."""

    def __init__(self, *files: dict[str, str]) -> None:
        self.ranks = [Rank(each) for each in files]
        self.leading = LeadingAdapters(self.ranks[0].adapters, self._ask, self._tell)

    def _ask(self, call: Call) -> Sequence[Outcome]:
        return [perform(rank.reloader, rank.adapters, call) for rank in self.ranks]

    def _tell(self, reading: Reading) -> None:
        for rank in self.ranks[1:]:
            rank.adapters.follow(reading)

    @property
    def rows(self) -> list[set[str]]:
        return [set(rank.there.rows) for rank in self.ranks]

    @property
    def kept(self) -> list[set[str]]:
        return [rank.there.kept for rank in self.ranks]


def both(**files: str) -> Engine:
    named = {f"/{name}": digest for name, digest in files.items()}
    return Engine(dict(named), dict(named))


def test_the_others_read_beside_rank_0_and_once() -> None:
    engine = both(first="a")
    facts = engine.leading.read(FIRST)
    assert engine.leading.has_untold and not engine.ranks[1].reads
    engine.leading.tell()
    engine.leading.place(facts.digest)
    assert engine.rows == [{"a"}, {"a"}] and not engine.leading.has_untold
    assert [rank.reads for rank in engine.ranks] == [["/first"], ["/first"]]
    engine.leading.drop("a")
    engine.leading.drop("a")
    assert engine.rows == engine.kept == [set(), set()]


def test_a_rank_that_is_still_reading_is_waited_for() -> None:
    engine = both(first="a")
    engine.ranks[1].goes_on.clear()
    engine.leading.read(FIRST)
    engine.leading.tell()
    threading.Timer(0.05, engine.ranks[1].goes_on.set).start()
    engine.leading.place("a")
    assert engine.rows == [{"a"}, {"a"}] and engine.ranks[1].reads == ["/first"]


@pytest.mark.parametrize(
    ("files", "words"),
    [({}, "rank 1: /first holds no adapter."), ({"/first": "b"}, "rank 1: .*/first holds other weights than rank 0")],
)
def test_where_one_rank_cannot_none_places_it(files: dict[str, str], words: str) -> None:
    engine = Engine({"/first": "a"}, files)
    engine.leading.read(FIRST)
    with pytest.raises(UserError, match=words):
        engine.leading.place("a")
    assert engine.rows == engine.kept == [set(), set()]
    with pytest.raises(UserError, match="was not read"):
        engine.leading.place("a")
    engine.ranks[1].files["/first"] = "a"
    engine.leading.read(FIRST)
    engine.leading.place("a")
    assert engine.rows == [{"a"}, {"a"}]


def test_a_full_rank_leaves_the_others_as_they_were() -> None:
    engine = both(first="a", second="b")
    engine.ranks[1].there.rows = {"x": 0, "y": 1}
    engine.leading.read(FIRST)
    with pytest.raises(UserError, match="rank 1: All 2 places"):
        engine.leading.place("a")
    assert engine.rows == [set(), {"x", "y"}] and engine.kept == [set(), set()]


def test_what_rank_0_cannot_read_stays_nowhere() -> None:
    """Another rank drops what it has read, unless the same weights are placed under another path."""
    engine = Engine({"/second": "b"}, {"/first": "a", "/second": "b", "/third": "b"})
    with pytest.raises(UserError, match="/first holds no adapter"):
        engine.leading.read(FIRST)
    engine.leading.read(SECOND)
    engine.leading.place("b")
    with pytest.raises(UserError):
        engine.leading.read(AdapterSource("third", "/third"))
    engine.leading.tell()
    assert engine.kept == [{"b"}, {"b"}] and engine.rows == [{"b"}, {"b"}]
    assert engine.ranks[1].reads == ["/first", "/second", "/third"]


def test_shared_memory_of_the_engine_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="'sent' lies in shared memory, which several ranks cannot read; save it"):
        both().leading.read(AdapterSource("sent", "sent:8589934592+4096@7"))
