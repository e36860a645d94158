"""What a producer says where a library moves the pages (connectors `nixl`, `mooncake`), damaged on its way.

Owns: a producer's words, a library whose registered memory is a table, and the claim that hears them. Never does: damage
anything. Called by: the table of targets.

`granted` names the producer's memory, `found` the addresses of its pages. Both may be anything: an address outside of
registered memory, a place that nobody has, a lease of no or endless seconds.
"""

import ctypes
import socket
from pathlib import Path
from unittest import mock

import numpy as np

from core_kv_connectors.handoff import claim as claim_module
from core_kv_connectors.handoff.claim import Claim, Source
from core_kv_connectors.handoff.fabrics.fabric import FabricTransport
from core_kv_connectors.handoff.spare import Spare
from core_kv_connectors.peers.handshake import Agreement
from core_kv_connectors.peers.messages import Found, Granted, Names, PeerError, Released
from core_kv_connectors.peers.pace import Streams
from tests.fuzz.lease_frames import TENANT, TICKET
from tests.fuzz.page_frames import AGREEMENT, LIMIT_S, NUM_PAGES, answered, framed, rows
from tests.fuzz.threads import no_thread_dies
from tests.kv.tier_fakes import PAGE_BYTES

NAMES = ("granted", "found")
PLACE = b"the producer"
BEGIN = 1 << 40
"""Of the producer's registered memory: its pages, one behind another."""


class Table:
    """A library. pages: what the registered memory of the producer holds."""

    name = "table"

    def __init__(self, pages: bytes) -> None:
        self.place = b""
        self._pages = pages

    def register(self, address: int, num_bytes: int) -> None:
        self._own = range(address, address + num_bytes)
        self.place = b"here"

    def read(self, place: bytes, source: int, target: int, num_bytes: int, limit_s: float) -> None:
        assert target in self._own and target + num_bytes - 1 in self._own, "memory that is not registered is written"
        assert 0 <= limit_s <= LIMIT_S * 4, f"a page is awaited for {limit_s} s"
        start = source - BEGIN
        if place != PLACE or not 0 <= start <= len(self._pages) - num_bytes:
            raise PeerError("the memory is not registered")
        ctypes.memmove(target, self._pages[start : start + num_bytes], num_bytes)


def make_frames(folder: Path) -> None:
    """Write what a producer says, and look that good pages arrive. Raises AssertionError."""
    found = rows()[:NUM_PAGES]
    granted = framed(Granted(NUM_PAGES, 30.0, place=PLACE)) + framed(Names([block[2] for block, _, _ in found]))
    pages = (framed(Found(block[2], header, BEGIN + n * PAGE_BYTES)) for n, (block, header, _) in enumerate(found))
    (folder / "granted").write_bytes(granted)
    (folder / "found").write_bytes(b"".join(pages) + framed(Released(NUM_PAGES)))
    assert read_frames(folder) == NUM_PAGES, "good pages do not arrive"


def read_frames(folder: Path) -> int:
    """Have a claim hear a producer; returns how many pages it takes, each with the bytes of its tokens.

    Raises AssertionError also for an error of the claim that no peer may cause.
    """
    agreement = Agreement(AGREEMENT.secret, AGREEMENT.fingerprint, AGREEMENT.page_bytes, transport=Table.name)
    said = (folder / "granted").read_bytes() + (folder / "found").read_bytes()
    found = {block[1].digest: page for block, _, page in rows()[:NUM_PAGES]}
    blocks = [(block[0], block[1]) for block, _, _ in rows()[:NUM_PAGES]]
    transport = FabricTransport(Table(b"".join(page for _, _, page in rows()[:NUM_PAGES])), PAGE_BYTES)
    spare = Spare(1 << 20)
    defects = mock.patch.object(claim_module.logger, "error")
    with (
        no_thread_dies(),
        defects as error,
        socket.create_server(("127.0.0.1", 0)) as server,
        answered(server, said, agreement=agreement),
    ):
        source = Source(*server.getsockname()[:2], TICKET, "P")
        new = lambda: np.empty(PAGE_BYTES, np.uint8)  # noqa: E731
        claim = Claim(
            source, TENANT, agreement, new, spare, Streams(), lambda outcome, claim: None, transport=transport
        )
        claim.know(lambda: blocks)
        claim.want(claim.offered.result(LIMIT_S))
        claim.done.result(LIMIT_S)
        count = len(claim.pages)
        for key, page in claim.pages.values():
            assert page.tobytes() == found[key.digest], "a page has other bytes than its tokens have"
        claim.drop()
    assert not error.called, claim.problem
    assert spare.num_taken == 0, "memory is left"
    return count
