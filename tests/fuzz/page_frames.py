"""What engines say to each other about KV pages (connector `tcp`), damaged on its way, in both directions.

Owns: the bytes of both ends, and an end that sends them as they are. Never does: damage a file. Called by: the table of
targets.

`hello` and `terms` are the listener's agreement, `names` and `found` what it says later; `asks` is what an engine that dials
says after a good agreement, `dials` what it says instead of one. `order` has two bytes an answer: whose header comes with whose
page, so that pages are swapped, of another prompt, tenant or weights.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np

from core.kv.block_keys import BlockKeys
from core.kv.sequence import KVSequence
from core_kv_connectors.peers.handshake import Agreement, answer, dial
from core_kv_connectors.peers.listener import OfferListener
from core_kv_connectors.peers.messages import MAGIC, Found, Get, Hello, Names, PeerError, Terms, receive
from core_kv_connectors.peers.offer import Offer, name_of
from core_kv_connectors.peers.peer import Block, Peer
from core_kv_connectors.tiers.page_file import page_parts
from tests.fuzz.threads import no_thread_dies
from tests.kv.tier_fakes import FIRST, OTHER, OTHER_PRINT, PAGE_BYTES, PRINT, byte_of

NAMES = ("hello", "terms", "names", "found", "order", "dials", "asks")
NUM_PAGES = 4
LIMIT_S = 5.0
AGREEMENT = Agreement(b"s" * 32, PRINT, PAGE_BYTES)
Row = tuple[Block, bytes, bytes]
"""A block, the header of its page, and the page."""


def rows() -> list[Row]:
    """Pages of the first prompt, then of another one, another tenant, other weights."""
    found: list[Row] = []
    for tokens, tenant, fingerprint in (
        (FIRST, "", PRINT), (OTHER, "", PRINT), (FIRST, "ann", PRINT), (FIRST, "", OTHER_PRINT),
    ):  # fmt: skip
        keys, sequence = BlockKeys("sha256", 4), KVSequence(list(tokens), tenant=tenant)
        for index in range(NUM_PAGES):
            key = keys.key(sequence, index)
            page = np.full(PAGE_BYTES, byte_of(sequence.token_ids[4 * index : 4 * index + 4], tenant), np.uint8)
            header, _ = page_parts(fingerprint, 0, key, page, AGREEMENT.secret)
            found.append(((0, key, name_of(0, key)), header[4:], page.tobytes()))
    return found


def make_frames(folder: Path) -> None:
    """Write what both ends say, and look that good pages arrive. Raises AssertionError."""
    found = rows()
    blocks = [block for block, _, _ in found[:NUM_PAGES]]
    written = {
        "hello": framed(Hello(MAGIC, bytes(32))),
        "terms": framed(Terms(bytes(32), PRINT, PAGE_BYTES)),
        "names": framed(Names([block[2] for block in blocks], [], True)) + framed(Names([], [blocks[3][2]])),
        "found": b"".join(framed(Found(block[2], header)) + page for block, header, page in found[:NUM_PAGES]),
        "order": bytes(index // 2 for index in range(2 * NUM_PAGES)),
        "dials": framed(Hello(MAGIC, bytes(32), "pages")) + framed(Terms(bytes(32), PRINT, PAGE_BYTES)),
        "asks": b"".join(framed(Get(block[2])) for block in blocks),
    }
    for name, data in written.items():
        (folder / name).write_bytes(data)
    assert read_frames(folder) == 2 * NUM_PAGES, "good pages do not arrive"


def read_frames(folder: Path) -> int:
    """Give each end what the other says; returns the number of pages that were taken.

    Raises AssertionError for a page with other bytes than its tokens have, and what a thread of either end raised.
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
        count = taken(b"".join(parts)) + taken(said["found"])
        heard(said["names"])
        heard(said["hello"] + said["terms"], instead=True)
        serves_after(lambda connection: connection.sendall(said["dials"]))
        serves_after(lambda connection: (dial(connection, AGREEMENT, "pages"), connection.sendall(said["asks"])))
    return count


def framed(message: msgspec.Struct) -> bytes:
    """A message as it lies on a connection."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "little") + body


def taken(pages: bytes) -> int:
    """Have an engine ask for pages; returns how many it takes of `pages`, which it gets for its questions."""
    found = rows()[:NUM_PAGES]
    blocks = [block for block, _, _ in found]
    count = 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        names = framed(Names([block[2] for block in blocks], [], True))
        with answered(server, names, cut=False), engine(server) as peer:
            while len(peer) < NUM_PAGES:
                time.sleep(0.0005)
            with answered(server, pages), closing(peer):
                for index, (block, _, page) in enumerate(found):
                    got = peer.fetch(block, blocks[index + 1 :])
                    if got is None:
                        break  # what comes after is computed, and asked for on another connection
                    count += 1
                    assert got.tobytes() == page, "a page has other bytes than its tokens have"
    return count


def heard(said: bytes, *, instead: bool = False) -> None:
    """Have an engine hear what pages there are, or what is said instead of an agreement."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        answered(server, said, agreement=None if instead else AGREEMENT),
        engine(server),
    ):
        pass


@contextmanager
def engine(server: socket.socket) -> Iterator[Peer]:
    """The end that dials."""
    with closing(Peer(*server.getsockname()[:2], AGREEMENT, lambda: np.empty(PAGE_BYTES, np.uint8))) as peer:
        yield peer


@contextmanager
def answered(
    server: socket.socket, said: bytes, *, agreement: Agreement | None = AGREEMENT, cut: bool = True
) -> Iterator[None]:
    """Say something on the next connection, and wait until the other end hangs up.

    agreement: that is made first; None: there is none. cut: whether the other end is told that nothing more comes.
    """
    server.settimeout(LIMIT_S)
    talking = threading.Thread(target=_talk, args=(server, said, agreement, cut), daemon=True)
    talking.start()
    yield
    talking.join()


def _talk(server: socket.socket, said: bytes, agreement: Agreement | None, cut: bool) -> None:
    connection, _ = server.accept()
    with connection, suppress(OSError, PeerError):
        connection.settimeout(LIMIT_S)
        if agreement is not None:
            answer(connection, agreement, ("names", "pages", "lease"))
        connection.sendall(said)
        if cut:
            connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass


def serves_after(speak: Callable[[socket.socket], object]) -> None:
    """Whether a listener still serves a good engine after another one has spoken. Raises AssertionError."""
    offer = Offer(1 << 20)
    (group, key, name), _, page = rows()[0]
    offer.put(group, key, np.frombuffer(page, np.uint8))
    listener = OfferListener("127.0.0.1", 0, AGREEMENT, offer, "listen")
    try:
        with socket.create_connection(listener.address, LIMIT_S) as connection, suppress(OSError, PeerError):
            speak(connection)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        with socket.create_connection(listener.address, LIMIT_S) as connection:
            dial(connection, AGREEMENT, "pages")
            connection.sendall(framed(Get(name)))
            assert receive(connection, Found).header, "the listener no longer serves"
    finally:
        listener.close()
