"""Leased pages between two engines: a ticket serves once, its tenant only, and whatever goes wrong costs hits alone."""

import random
import socket
import time

import pytest

from core.api.errors import ConfigError
from core_kit.fixtures.kv_context import config_of
from core_kv_connectors.handoff.claim import Source
from core_kv_connectors.handoff.connector import Handoff
from core_kv_connectors.handoff.leases import Leases
from core_kv_connectors.handoff.roles import Roles
from core_kv_connectors.peers.handshake import Agreement, dial
from core_kv_connectors.peers.messages import Ask, Claim, Granted, receive, send
from tests.kv.between import Between
from tests.kv.test_peers import free_port, until
from tests.kv.tier_fakes import OTHER_PRINT, PAGE_BYTES, PRINT, key, page

PAGES = 6
BLOCKS = [(0, key(number)) for number in range(PAGES)]
LEASED = [(None, group, of, page(number)) for number, (group, of) in enumerate(BLOCKS)]
LAST = BLOCKS[-1][1].digest


@pytest.fixture
def make(tmp_path):
    """Opens engines' connectors; they are closed at the end."""
    opened = []

    def engine(*asks, fingerprint=PRINT, capacity=1 << 20, buffer=1 << 20, lease_s=30.0):
        listen = None if asks else f"127.0.0.1:{free_port()}"
        role = "kv_consumer" if asks else "kv_producer"
        roles = Roles.read(role, listen, asks, lease_s=lease_s, engine_id="P", has_key=False)
        options = {"roles": roles, "secret": b"", "capacity": capacity, "buffer": buffer}
        opened.append(Handoff(config_of(tmp_path), lambda: fingerprint, PAGE_BYTES, **options))
        return opened[-1]

    yield engine
    for one in opened:
        one.close(0.0)


def place_of(address):
    return f"{address[0]}:{address[1]}"


def leased(producer, tenant="t"):
    return producer.lease(LEASED, LAST, PAGES, tenant)


def begun(consumer, ticket, tenant="t", name="r", address=None, engine_id=""):
    """The claim of a request, or None."""
    host, port = address or consumer.roles.peers[0]
    consumer.claim(name, Source(host, port, ticket, engine_id), tenant)
    return consumer.claim_of(name)


def fetched(consumer, ticket, tenant="t", name="r", **more):
    """How many pages a request gets, all of them right."""
    claim = begun(consumer, ticket, tenant, name, **more)
    if claim is not None:
        claim.know(lambda: BLOCKS)
        claim.want(claim.offered.result(20))
        claim.done.result(20)
    consumer.collect(name)
    found = [consumer.get(*block) for block in BLOCKS]
    assert all(got is None or (got == page(number)).all() for number, got in enumerate(found))
    consumer.end_claim(name)
    assert not any(consumer.contains(*block) for block in BLOCKS)
    return sum(got is not None for got in found)


def ends(producer, consumer):
    """Wait until nothing is left of any lease, on either side."""
    until(lambda: not producer.report_counts()["leases"])
    assert producer.report_counts()["leased_pages"] == 0
    until(lambda: not consumer.report_counts()["buffered_bytes"])
    assert consumer.report_counts()["claims"] == 0
    producer.check_integrity()


def test_a_ticket_serves_once(make):
    one = make()
    other = make(place_of(one.roles.listen))
    ticket = leased(one)
    assert fetched(other, ticket, engine_id="P") == PAGES
    assert fetched(other, ticket) == 0
    ends(one, other)
    counts = one.report_counts() | other.report_counts()
    assert counts["lease.refused.spent"] == counts["claim.refused"] == 1
    assert counts["lease.pages_sent"] == counts["lease.pages_received"] == counts["claim.pages_received"] == PAGES
    assert counts["lease.unequal"] == 0


def test_altered_tickets_and_those_of_other_engines_are_refused(make):
    one, another = make(), make()
    ticket = leased(one)
    rng = random.Random(1)
    leases = one.leases
    attempts = 0
    while attempts < 1000:
        place = rng.randrange(len(ticket))
        letter = rng.choice("abcXYZ019-_.!é")
        altered = rng.choice([
            ticket[:place] + letter + ticket[place + 1 :], ticket[:place], ticket[place:], ticket + letter,
        ])  # fmt: skip
        if altered != ticket:
            attempts += 1
            assert isinstance(leases.claim(altered, "t"), str)
    assert isinstance(leases.claim(leased(another), "t"), str)
    assert isinstance(leases.claim(ticket, "t", "another engine"), str)
    assert leases.counts["refused.forged"] == 1002 and not leases.counts["granted"]
    assert not isinstance(leases.claim(ticket, "t", "P"), str), "none of these has used it up"


def test_another_tenant_gets_nothing_and_takes_nothing_away(make):
    one = make()
    other = make(place_of(one.roles.listen))
    ticket = leased(one, tenant="t")
    assert fetched(other, ticket, tenant="u") == fetched(other, ticket, tenant="") == 0
    assert one.report_counts()["lease.refused.tenant"] == 2
    assert fetched(other, ticket, tenant="t") == PAGES


def test_leases_end_in_time(make):
    now = [0.0]
    leases = Leases(PRINT, PAGE_BYTES, 1 << 20, 30.0, "P", lambda: now[0])
    ticket = leases.issue(BLOCKS, LAST, PAGES, "t")
    assert leases.expire() == 30.0 and len(leases) == 1
    now[0] = 30.0
    assert isinstance(leases.claim(ticket, "t"), str)
    assert (len(leases), leases.num_pages, leases.counts["expired"]) == (0, 0, 1)
    assert leases.expire() is None


def test_a_lease_is_renewed_while_its_consumer_waits(make):
    one = make()
    other = make(place_of(one.roles.listen))
    ticket = leased(one)
    one.leases.lease_s = 0.6
    claim = begun(other, ticket)
    until(lambda: one.report_counts().get("lease.granted"))
    time.sleep(1.3)
    claim.know(lambda: BLOCKS)
    assert len(claim.offered.result(20)) == PAGES
    claim.want(BLOCKS)
    claim.done.result(20)
    assert len(claim.pages) == PAGES
    other.end_claim("r")
    ends(one, other)


def test_a_consumer_that_says_nothing_loses_its_lease(make):
    one = make()
    ticket = leased(one)
    one.leases.lease_s = 0.1
    with socket.create_connection(one.listener.address, 5.0) as connection:
        dial(connection, Agreement(b"", PRINT, PAGE_BYTES), "lease")
        send(connection, Claim(ticket, "t"))
        assert receive(connection, Granted).count == PAGES
        until(lambda: not one.report_counts()["leases"])
    assert one.report_counts()["lease.dropped"] == 1


@pytest.mark.parametrize("state", ["dialled", "known", "offered", "done"])
def test_a_request_may_end_in_each_state(make, state):
    one = make()
    other = make(place_of(one.roles.listen))
    claim = begun(other, leased(one))
    if state != "dialled":
        claim.know(lambda: BLOCKS)
    if state in ("offered", "done"):
        claim.offered.result(20)
    if state == "done":
        claim.want(BLOCKS)
        claim.done.result(20)
        other.collect("r")
    other.end_claim("r")
    claim.done.result(20)
    # A claim that ends before it was shown leaves the lease to its time.
    if "lease.granted" not in one.report_counts():
        one.leases.drop_all()
    ends(one, other)
    assert not any(other.contains(*block) for block in BLOCKS)


def test_only_configured_peers_are_dialled(make):
    one = make()
    other = make("127.0.0.1:1")
    assert fetched(other, leased(one), address=one.roles.listen) == 0
    assert other.report_counts()["claim.unknown_peer"] == 1
    assert "lease.granted" not in one.report_counts()


def test_damaged_pages_are_not_used(make, caplog):
    one = make()
    between = Between(one.roles.listen)
    other = make(between.address)
    said = []

    def alter(data):
        said.append(len(data))
        return bytes([*data[:-1], data[-1] ^ 1]) if sum(said) > 600 else data

    between.pass_on = alter
    assert fetched(other, leased(one)) < PAGES
    assert "are computed here instead" in caplog.text
    between.cut()
    ends(one, other)


@pytest.mark.parametrize("after", [0, 40, 300, 700])
def test_a_peer_may_die_at_any_moment(make, after):
    one = make()
    between = Between(one.roles.listen)
    other = make(between.address)
    said = []

    def cut(data):
        said.append(len(data))
        if sum(said) > after:
            between.cut()
        return data

    between.pass_on = cut
    assert fetched(other, leased(one)) <= PAGES
    one.leases.expire()
    if "lease.granted" not in one.report_counts():
        one.leases.drop_all()
    ends(one, other)


def test_a_peer_that_fails_is_left_alone(make):
    other = make(f"127.0.0.1:{free_port()}")
    for _ in range(4):
        assert fetched(other, "no ticket") == 0
    counts = other.report_counts()
    assert (counts["claim.failed"], counts["claim.resting"]) == (3, 1)


def test_tickets_of_earlier_weights_are_worth_nothing(make, tmp_path):
    one = make()
    other = make(place_of(one.roles.listen))
    ticket = leased(one)
    one.use_weights(config_of(tmp_path), lambda: OTHER_PRINT)
    assert fetched(other, ticket) == 0, "the engines do not agree"
    other.use_weights(config_of(tmp_path), lambda: OTHER_PRINT)
    assert fetched(other, ticket) == 0, "the lease was dropped"
    assert one.report_counts()["lease.dropped"] == 1
    assert fetched(other, leased(one)) == PAGES


def test_without_room_there_is_no_ticket_and_without_memory_no_page(make):
    small = make(capacity=3 * PAGE_BYTES)
    assert leased(small) is None and small.report_counts()["lease.refused.no_room"] == 1
    one = make()
    other = make(place_of(one.roles.listen), buffer=3 * PAGE_BYTES)
    for _ in range(4):
        assert fetched(other, leased(one)) == 0
    assert other.report_counts()["claim.no_memory"] == 4, "the peer is not to blame"
    ends(one, other)


def test_two_leases_share_a_page_until_both_have_ended(make):
    one = make(capacity=PAGES * PAGE_BYTES)
    other = make(place_of(one.roles.listen))
    first, second = leased(one), leased(one)
    assert fetched(other, first) == PAGES
    one.check_integrity()
    assert fetched(other, second) == PAGES
    ends(one, other)


def test_hostile_bytes_cost_their_own_connection(make):
    one = make()
    other = make(place_of(one.roles.listen))
    rng = random.Random(2)
    for number in range(30):
        with socket.create_connection(one.listener.address, 5.0) as connection:
            connection.settimeout(10.0)
            try:
                if number % 3:
                    dial(connection, Agreement(b"", PRINT, PAGE_BYTES), ("lease", "check")[number % 2])
                if number % 3 == 2:
                    send(connection, Claim(leased(one), "t"))
                    send(connection, Ask(rng.randbytes(16)))
                connection.sendall(rng.randbytes(rng.randrange(1, 400)))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            except TimeoutError:
                raise
            except OSError:
                pass  # it was hung up on
    one.leases.drop_all()
    assert fetched(other, leased(one)) == PAGES
    ends(one, other)


def test_a_producer_has_no_loads_to_fail():
    with pytest.raises(ConfigError, match="kv_load_failure_policy fail: kv_role kv_producer loads no pages"):
        Roles.read("kv_producer", "127.0.0.1:1", (), lease_s=1.0, engine_id=None, has_key=False, load_failure="fail")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("kv_producer", None, ()), "give kv_ip and kv_port"),
        (("kv_producer", "0.0.0.0:1", ()), "the address at which they reach"),
        (("kv_producer", "10.0.0.1:1", ()), "need a secret"),
        (("kv_producer", "127.0.0.1:1", ("127.0.0.1:2",)), "takes no pages"),
        (("kv_consumer", None, ()), "give --kv-peers"),
        (("kv_consumer", None, ("10.0.0.1:1",)), "need a secret"),
        (("kv_consumer", None, ("127.0.0.1:1",) * 65), "at most 64"),
    ],
)
def test_roles_that_cannot_be_are_refused(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Roles.read(*given, lease_s=30.0, engine_id=None, has_key=False)
