"""What engines say about a lease of KV pages (connector `tcp` with a role), damaged on its way, in both directions.

Owns: the bytes of both ends. Never does: damage a file. Called by: the table of targets.

`claim` is what a consumer says after a good agreement: it shows a ticket, asks for four pages and releases the lease. `granted`
is what a producer answers. `order` has two bytes a page: whose header comes with whose page.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np

from core_kv_connectors.handoff.claim import Claim, Source
from core_kv_connectors.handoff.leases import Leases
from core_kv_connectors.handoff.listener import LeaseListener
from core_kv_connectors.handoff.spare import Spare
from core_kv_connectors.handoff.ticket import KEY_BYTES, Ticket, tenant_digest, written
from core_kv_connectors.peers import messages
from core_kv_connectors.peers.handshake import dial
from core_kv_connectors.peers.messages import Ask, Found, Granted, Names, PeerError, Released, receive
from core_kv_connectors.peers.pace import Streams
from tests.fuzz.page_frames import AGREEMENT, LIMIT_S, NUM_PAGES, answered, framed, rows
from tests.fuzz.threads import no_thread_dies
from tests.kv.tier_fakes import PAGE_BYTES, PRINT

NAMES = ("claim", "granted", "found", "order")
KEY, LEASE, TENANT = b"k" * KEY_BYTES, b"l" * 16, "ann"
TICKET = written(Ticket(LEASE, PRINT, b"d" * 32, NUM_PAGES, tenant_digest(TENANT), 4e9), KEY)
"""The ticket of the lease that `leased` begins: neither its key nor its number is drawn."""
CLAIM = messages.Claim(TICKET, TENANT, "P")


def make_frames(folder: Path) -> None:
    """Write what both ends say, and look that good pages arrive. Raises AssertionError."""
    found = rows()[:NUM_PAGES]
    names = [block[2] for block, _, _ in found]
    written_files = {
        "claim": framed(CLAIM)
        + b"".join(framed(Ask(name)) for name in names)
        + framed(Ask(ends=True, received=NUM_PAGES)),
        "granted": framed(Granted(NUM_PAGES, 30.0)) + framed(Names(names)),
        "found": b"".join(framed(Found(block[2], header)) + page for block, header, page in found)
        + framed(Released(NUM_PAGES)),
        "order": bytes(index // 2 for index in range(2 * NUM_PAGES)),
    }
    for name, data in written_files.items():
        (folder / name).write_bytes(data)
    assert read_frames(folder) == 3 * NUM_PAGES, "good pages do not arrive"


def read_frames(folder: Path) -> int:
    """Give each end what the other says; returns the number of pages that were sent and taken.

    Raises AssertionError for a page with other bytes than its tokens have, for a lease that is granted for anything but its
    ticket, for what is left of a lease, and for what a thread of either end raised.
    """
    said = {name: (folder / name).read_bytes() for name in NAMES}
    with no_thread_dies():
        found = rows()
        order = said["order"][: 2 * NUM_PAGES]
        parts = [
            framed(Found(found[min(place, NUM_PAGES - 1)][0][2], found[one % len(found)][1]))
            + found[other % len(found)][2]
            for place, (one, other) in enumerate(zip(order[0::2], order[1::2], strict=False))
        ]
        return (
            sent(said["claim"])
            + taken(said["granted"] + said["found"])
            + taken(said["granted"] + b"".join(parts) + framed(Released(NUM_PAGES)))
        )


@contextmanager
def leased() -> Iterator[tuple[Leases, LeaseListener]]:
    """A producer with one lease, whose ticket is `TICKET`."""
    leases = Leases(PRINT, PAGE_BYTES, 1 << 20, 30.0, "P")
    leases._key = KEY
    found = rows()[:NUM_PAGES]
    blocks = [(block[0], block[1]) for block, _, _ in found]
    assert leases.issue(blocks, b"d" * 32, NUM_PAGES, TENANT) is not None
    leases._leases[LEASE] = leases._leases.popitem()[1]
    for block, _, page in found:
        leases.fill(block[0], block[1], np.frombuffer(page, np.uint8))
    listener = LeaseListener("127.0.0.1", 0, AGREEMENT, leases, "kv_port")
    try:
        yield leases, listener
    finally:
        listener.close()


def sent(said: bytes) -> int:
    """Have a consumer say something to a producer; returns the pages that were sent under a lease that it released."""
    with leased() as (leases, listener):
        with socket.create_connection(listener.address, LIMIT_S) as connection, suppress(OSError, PeerError):
            connection.settimeout(LIMIT_S)
            dial(connection, AGREEMENT, "lease")
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        count = leases.counts["granted"]
        assert not count or shows_ticket(said), "a lease was granted for another claim"
        deadline = time.monotonic() + LIMIT_S
        while count and len(leases) and time.monotonic() < deadline:
            time.sleep(0.0005)
        assert len(leases) == 1 - count, "a granted lease is left, or another one has ended"
        leases.check_integrity()
        if not count:
            with socket.create_connection(listener.address, LIMIT_S) as connection:
                dial(connection, AGREEMENT, "lease")
                connection.sendall(framed(CLAIM))
                assert receive(connection, Granted).count == NUM_PAGES, "the ticket no longer serves"
        return leases.counts["pages_sent"]


def shows_ticket(said: bytes) -> bool:
    """Whether the first message is a claim with the ticket, for its tenant."""
    length = int.from_bytes(said[:4], "little")
    try:
        claim = msgspec.msgpack.decode(said[4 : 4 + length], type=messages.Claim)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return claim.ticket == TICKET and claim.tenant == TENANT and claim.engine_id in ("", "P")


def taken(said: bytes) -> int:
    """Have a producer say something to a claim; returns how many pages it takes, each with the bytes of its tokens."""
    found = {block[1].digest: page for block, _, page in rows()[:NUM_PAGES]}
    blocks = [(block[0], block[1]) for block, _, _ in rows()[:NUM_PAGES]]
    spare = Spare(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as server, answered(server, said):
        source = Source(*server.getsockname()[:2], TICKET, "P")
        new = lambda: np.empty(PAGE_BYTES, np.uint8)  # noqa: E731
        claim = Claim(source, TENANT, AGREEMENT, new, spare, Streams(), lambda outcome, claim: None)
        claim.know(lambda: blocks)
        claim.want(claim.offered.result(LIMIT_S))
        claim.done.result(LIMIT_S)
        count = len(claim.pages)
        for key, page in claim.pages.values():
            assert page.tobytes() == found[key.digest], "a page has other bytes than its tokens have"
        claim.drop()
    assert spare.num_taken == 0, "memory is left"
    return count
