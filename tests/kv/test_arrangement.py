"""Pages of engines with other numbers of ranks: every byte finds its place, what does not fit says so, tickets stay tickets.

The pages themselves are made by `shaped_pages`, which cuts values into heads and never looks at what is tested here.
"""

import random
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest

from core.api.errors import UNREADABLE
from core.api.kv_transfer import PrefixKey
from core_kit.fixtures.kv_context import config_of
from core_kv_connectors.handoff.connector import Handoff
from core_kv_connectors.handoff.fabrics.fabric import FabricTransport
from core_kv_connectors.handoff.roles import Roles
from core_kv_connectors.peers.arrangement import SentPages, arrangement
from core_kv_connectors.peers.handshake import Agreement
from core_kv_connectors.peers.messages import SMALL_BYTES, PeerError, Terms
from core_kv_connectors.peers.page_shape import MOST_SHAPE, GroupShape, Layers, PageShape
from tests.kv.shaped_pages import Shaped, share
from tests.kv.test_fabrics import Copies
from tests.kv.test_handoff import begun, ends, place_of
from tests.kv.test_peers import free_port
from tests.kv.tier_fakes import PRINT, key

RANKS = (1, 2, 4, 8)
KEYS = [key(number) for number in range(4)]
LAST = KEYS[-1].digest


def keyed(ranks: int, *layers: list[tuple[int, int]]) -> PageShape:
    """A shape with one group of layers with keys."""
    return PageShape.of(ranks, [sum(size for size, _ in layer) for layer in layers], [GroupShape.of(layers)])


@pytest.mark.parametrize(("of", "to"), product(RANKS, RANKS))
def test_every_byte_has_its_place(of: int, to: int) -> None:
    """Heads, heads that ranks share, a latent, groups with fewer layers, and states that go on in the next page."""
    theirs, ours = Shaped(of), Shaped(to)
    assert not ours.shape.why_not(theirs.shape) and not theirs.shape.why_not(ours.shape)
    sent, way = SentPages(theirs.shape), arrangement(theirs.shape, ours.shape)
    assert (way is None) == (of == to < 8), (
        "pages of equal engines are used as they come, unless ranks have the same heads"
    )
    done: set[int] = set()
    for number in theirs.numbers if way is not None else ():
        assert way is not None
        unit = way.unit(number)
        came = [sent.of(each, theirs.pages(1)[each][0]) for each in unit or [number]]
        assert [page.nbytes for page in came] == [way.nbytes(each) for each in unit or [number]]
        if not unit:
            assert of == to and ours.is_right(1, number, came[0])
            done.add(number)
            continue
        pages = [np.full(ours.page_bytes, 99, np.uint8) for _ in way.ours(unit)]
        way.arrange(unit, came, pages)
        assert all(ours.is_right(1, each, page) for each, page in zip(way.ours(unit), pages, strict=True))
        done |= set(way.ours(unit))
    assert way is None or done == set(ours.numbers)


def test_any_numbers_of_heads_and_ranks() -> None:
    dice = random.Random(3)
    for turn in range(200):
        heads = [(dice.choice((1, 2, 3, 4, 6, 8)), dice.choice((1, 2, 6, 16))) for _ in range(dice.randrange(1, 5))]
        values = [np.random.default_rng(turn).integers(0, 256, shape, np.uint8) for shape in heads]

        def engine(values: list[np.ndarray], ranks: int) -> tuple[PageShape, np.ndarray]:
            parts = [[share(value, rank, ranks).reshape(-1) for value in values] for rank in range(ranks)]
            sizes = [[(part.size, min(len(value), ranks))] for part, value in zip(parts[0], values, strict=True)]
            return keyed(ranks, *sizes), np.concatenate([np.concatenate(part) for part in parts])

        fitting = [ranks for ranks in (1, 2, 3, 4, 8) if all(not n % ranks or not ranks % n for n, _ in heads)]
        (theirs, page), (ours, expected) = (engine(values, dice.choice(fitting)) for _ in range(2))
        assert not ours.why_not(theirs)
        sent, way = SentPages(theirs).of(0, page), arrangement(theirs, ours)
        found = np.zeros(ours.page_bytes, np.uint8)
        if way is None:
            found = sent
        else:
            way.arrange(way.unit(0), [sent], [found])
        assert (found == expected).all(), (heads, theirs, ours)


def test_what_ranks_have_alike_is_sent_once() -> None:
    page = np.repeat(np.arange(4, dtype=np.uint8), 24)
    latents = SentPages(keyed(4, [(16, 1)], [(8, 1)]))
    assert latents.senders(0) == [0] and latents.nbytes(0) == 24
    assert np.shares_memory(latents.of(0, page), page), "the part of one rank is sent where it lies"
    shared = SentPages(keyed(4, [(24, 2)]))
    assert shared.senders(0) == [0, 2] and list(shared.of(0, page)) == 24 * [0] + 24 * [2]
    heads = SentPages(keyed(4, [(24, 4)]))
    assert heads.of(0, page) is page
    alike = keyed(4, [(24, 1)])
    way = arrangement(alike, alike)
    assert way is not None, "both ends have four ranks, and one part is sent"
    found = np.zeros(96, np.uint8)
    way.arrange(way.unit(0), [page[:24] + 5], [found])
    assert (found == 5).all()


def state(ranks: int, pages: int) -> PageShape:
    """A shape with two heads, which more ranks share, and a state of so many pages."""
    return PageShape.of(ranks, [8], [GroupShape.of([[(8, 2)]]), GroupShape.of([[(32 // ranks, ranks)]], pages)])


@pytest.mark.parametrize(
    ("ours", "theirs", "sentence"),
    [
        (keyed(1, [(8, 1)]), PageShape(2), "2 ranks instead of 1: these pages are not divided by heads"),
        (PageShape(4), PageShape(2), "2 ranks instead of 4: these pages are not divided by heads"),
        (keyed(1, [(8, 1)], [(8, 1)]), keyed(2, [(4, 2)]), "2 ranks instead of 1: pages of 1 layers instead of 2"),
        (keyed(1, [(8, 1)]), keyed(2, [(3, 2)]), "2 ranks instead of 1: layer 0 has 6 bytes instead of 8 in group 0"),
        (keyed(2, [(8, 2)]), keyed(4, [(8, 4)]), "4 ranks instead of 2: layer 0 has 32 bytes instead of 16"),
        (keyed(1, [(8, 1)]), keyed(1, [(6, 1)]), "layer 0 has 6 bytes instead of 8"),
        (keyed(1, [(4, 1), (4, 1)]), keyed(1, [(8, 1)]), "layer 0 has 8 bytes instead of 8 in 2 sections"),
        (state(2, 2), state(4, 0), "4 ranks instead of 2: states of 0 pages instead of 2 in group 1"),
        (state(2, 2), state(4, 129), "4 ranks instead of 2: states of 129 pages instead of 2 in group 1"),
        (state(2, 2), keyed(1, [(16, 1)]), "1 ranks instead of 2: pages of 1 groups instead of 2"),
    ],
)
def test_pairs_that_do_not_fit_are_refused_with_both_values(ours: PageShape, theirs: PageShape, sentence: str) -> None:
    mine = Agreement(b"", "ab", ours.page_bytes, shape=ours)
    other = Agreement(b"", "ab", theirs.page_bytes, shape=theirs)
    assert sentence in mine.difference(other.terms())
    assert mine.difference(mine.terms()) == ""
    strange = Agreement(b"", "cd", theirs.page_bytes, shape=theirs)
    first = sentence if theirs.ranks != ours.ranks else "fingerprint cd instead of ab"
    assert first in mine.difference(strange.terms()), "the number of ranks says more than a fingerprint"


def test_what_an_end_says_about_its_shape_is_limited() -> None:
    ours = keyed(1, [(8, 1)], [(8, 1)])

    def said(ranks: int, buffers: object, groups: object) -> PageShape:
        return msgspec.msgpack.decode(msgspec.msgpack.encode([ranks, buffers, groups]), type=PageShape)

    for bad in (
        (1, [[8, -5]], []), (0, [], []), (1, [[0, 1]], []), (1, [[8, 1]], [[[[[[8, 65]], 1]]]]),
        (1, [[8, 1]], [[[[[[8, 1]], 0]]]]), (1, [[8, 1]], [[[], -1]]), (1, [[8, 1]], [[[], 0, 0]]),
    ):  # fmt: skip
        with pytest.raises(msgspec.ValidationError):
            said(*bad)
    whole = [[[[[8, 1]], 2]]]
    for huge, sentence in (
        (said(2, [[1, 1 << 32]], [whole]), "pages of 4294967296 layers instead of 2"),
        (said(1, [[8, 2]], [[[[[[8, 1]], 1 << 32]]]]), "4294967296 layers instead of 2"),
        (said(1, [[8, 2]], [[[[[[8, 1]], 2]], 1 << 20]]), "states of 1048576 pages instead of 0"),
        (said(1 << 20, [[8, 2]], [whole]), "not divided by heads"),
        (said(2, [[1 << 30, 2]], [whole]), "pages of 4294967296 bytes instead of 16"),
        (said(2, [[7, 2]], [whole]), "a layer of 8 bytes in 1 pages with 7"),
        (said(2, [[2, 2]], [[[[[[2, 4]], 2]]]]), "a layer in more pieces than 2 ranks have"),
    ):
        assert sentence in ours.why_not(huge)
    lies = Agreement(b"", "ab", 1 << 40, shape=keyed(2, [(4, 2)], [(4, 2)]))
    assert "bytes in a shape of 16" in Agreement(b"", "ab", 16, shape=ours).difference(lies.terms())


def test_whatever_shape_is_said_to_fit_can_be_arranged() -> None:
    """Of shapes that another end might say, none that is accepted reads or writes beside a page."""
    dice = random.Random(5)
    num_fitting = 0
    for _ in range(3000):
        ours = Shaped(dice.choice(RANKS)).shape
        said = bytearray(msgspec.msgpack.encode(Shaped(dice.choice(RANKS)).shape))
        for _ in range(dice.randrange(1, 4)):
            said[dice.randrange(len(said))] = dice.choice((0, 1, 2, 3, 4, 6, 8, 12, 64, dice.randrange(256)))
        try:
            theirs = msgspec.msgpack.decode(bytes(said), type=PageShape)
        except UNREADABLE:
            continue
        way = None if ours.why_not(theirs) else arrangement(theirs, ours)
        if way is None:
            continue
        num_fitting += 1
        number = 0
        while number < len(theirs.groups) + theirs.num_state_pages:
            unit = way.unit(number)
            sent = [np.zeros(way.nbytes(each), np.uint8) for each in unit]
            pages = [np.zeros(ours.page_bytes, np.uint8) for _ in way.ours(unit)]
            if unit and number != 2:  # the group of the states, whose pages have numbers of their own
                way.arrange(unit, sent, pages)
            number = max(number + 1, unit.stop)
    assert num_fitting > 20


def test_a_shape_of_too_many_words_is_undivided() -> None:
    """Its message is read from an end that has proved nothing, and is short."""
    sizes = [1 + index % 7 for index in range(400)]
    assert PageShape.of(2, sizes, [GroupShape.of([[(size, 2)] for size in sizes])]) == PageShape(2)
    largest = PageShape.of(64, [1 << 30] * 90, [GroupShape([Layers([(1 << 30, 64)], 90)], 1 << 19)] * 16)
    assert largest.groups and len(msgspec.msgpack.encode(largest)) <= MOST_SHAPE < SMALL_BYTES


def test_a_shape_that_is_altered_on_the_way_is_not_believed() -> None:
    """Pages that fit a shape which their engine does not have would be arranged to wrong ones, with good checksums."""
    shaped = Shaped(2).shape
    agreement = Agreement(b"", "ab", shaped.page_bytes, shape=shaped)
    proved = agreement.proved(agreement.terms(), "dials", b"a", b"b")
    agreement.check(proved, "dials", b"a", b"b")
    sent = msgspec.msgpack.encode(proved)
    agreement.check(msgspec.msgpack.decode(sent, type=Terms), "dials", b"a", b"b")
    for place in range(len(sent)):
        altered = bytes([*sent[:place], sent[place] ^ 1, *sent[place + 1 :]])
        with pytest.raises((PeerError, *UNREADABLE)):
            agreement.check(msgspec.msgpack.decode(altered, type=Terms), "dials", b"a", b"b")
    for other in (("listens", b"a", b"b"), ("dials", b"b", b"a")):
        with pytest.raises(PeerError):
            agreement.check(proved, *other)


Make = Callable[..., tuple[Handoff, Shaped]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Opens the connectors of engines with so many ranks; they are closed at the end."""
    opened: list[Handoff] = []

    def engine(ranks: int, *asks: str, fabric: Copies | None = None, buffer: int = 1 << 20) -> tuple[Handoff, Shaped]:
        shaped = Shaped(ranks)
        role = "kv_consumer" if asks else "kv_producer"
        listen = None if asks else f"127.0.0.1:{free_port()}"
        roles = Roles.read(role, listen, asks, lease_s=30.0, engine_id="P", has_key=False)
        opened.append(
            Handoff(
                config_of(tmp_path),
                lambda: PRINT,
                shaped.page_bytes,
                roles=roles,
                secret=b"",
                capacity=1 << 20,
                buffer=buffer,
                transport=None if fabric is None else lambda page_bytes: FabricTransport(fabric, page_bytes),
            )
        )
        opened[-1].arrange(shaped.shape, "numerics")
        return opened[-1], shaped

    yield engine
    for one in opened:
        one.close(0.0)


def blocks_of(shaped: Shaped) -> list[tuple[int, PrefixKey]]:
    """All pages of the prompt, in the order in which an engine names them."""
    return [(number, of) for number in shaped.numbers for of in KEYS]


def leased(producer: Handoff, shaped: Shaped) -> str:
    pages = [(None, number, of, shaped.pages(KEYS.index(of))[number][0]) for number, of in blocks_of(shaped)]
    ticket = producer.lease(pages, LAST, len(KEYS), "t")
    assert ticket is not None
    return ticket


def fetched(consumer: Handoff, shaped: Shaped, ticket: str, tenant: str = "t") -> int:
    """How many pages a request gets, all of them right."""
    claim = begun(consumer, ticket, tenant)
    claim.know(lambda: blocks_of(shaped))
    claim.want(claim.offered.result(20))
    claim.done.result(20)
    consumer.collect("r")
    found = 0
    for number, of in blocks_of(shaped):
        page = consumer.get(number, of)
        found += page is not None
        assert page is None or shaped.is_right(KEYS.index(of), number, page)
    consumer.end_claim("r")
    return found


@pytest.mark.parametrize("moved", [False, True], ids=["tcp", "fabric"])
@pytest.mark.parametrize(("of", "to"), product(RANKS, RANKS))
def test_leased_pages_arrive_in_other_ranks(make: Make, of: int, to: int, moved: bool) -> None:
    known: dict[bytes, tuple[int, int]] = {}
    here, there = (Copies(known) if moved else None for _ in range(2))
    one, its = make(of, fabric=here)
    other, ours = make(to, place_of(one.roles.listen), fabric=there)
    assert fetched(other, ours, leased(one, its)) == len(blocks_of(ours))
    ends(one, other)
    counts = one.report_counts() | other.report_counts()
    assert counts["claim.pages_received"] == counts["lease.pages_sent"] == len(blocks_of(its))
    assert not counts["lease.unequal"]


def test_a_state_that_lacks_a_page_is_not_used(make: Make) -> None:
    """Neither is it mixed with the next one, of which another page is gone; what came of both is counted."""
    one, its = make(4)
    other, ours = make(8, place_of(one.roles.listen))
    ticket = leased(one, its)
    one.discard(its.states[2], KEYS[1])
    one.discard(its.states[0], KEYS[2])
    assert fetched(other, ours, ticket) == len(blocks_of(ours)) - 2 * ours.num_state_pages
    ends(one, other)
    counts = one.report_counts() | other.report_counts()
    assert counts["claim.pages_received"] == counts["lease.pages_sent"] == len(blocks_of(its)) - 2
    assert not counts["lease.unequal"] and counts["lease.pages_lost"] == counts["claim.pages_missing"] == 2


def test_a_state_takes_memory_twice_while_it_is_arranged(make: Make) -> None:
    one, its = make(2)
    room = len(blocks_of(Shaped(4))) * Shaped(4).page_bytes
    more = its.num_state_pages * its.page_bytes
    other, ours = make(4, place_of(one.roles.listen), buffer=room + more - 1)
    assert fetched(other, ours, leased(one, its)) == 0 and other.report_counts()["claim.no_memory"] == 1
    other, ours = make(4, place_of(one.roles.listen), buffer=room + more)
    assert fetched(other, ours, leased(one, its)) == len(blocks_of(ours))
    ends(one, other)


def test_tickets_are_as_good_in_other_ranks(make: Make) -> None:
    """Shown twice, altered, or another tenant's: nothing is served, and the right one still is."""
    one, its = make(4)
    other, ours = make(2, place_of(one.roles.listen))
    ticket = leased(one, its)
    assert fetched(other, ours, ticket, tenant="u") == fetched(other, ours, ticket[:-1]) == 0
    assert fetched(other, ours, ticket) == len(blocks_of(ours))
    assert fetched(other, ours, ticket) == 0
    counts = one.report_counts()
    assert [counts[f"lease.refused.{why}"] for why in ("tenant", "forged", "spent")] == [1, 1, 1]
    ends(one, other)
