"""What a store of others answers (connector `lmcache`), damaged on its way.

Owns: a store that has its answers from files. Never does: damage anything. Called by: the table of targets.

`exist` answers the question for a name, `got` that for the object. Either may have any code and length, and end anywhere.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

from core_kv_connectors.stores.lmcache import ANSWER, BINARY, BYTES, FOUND, REQUEST, LMCacheStore
from core_kv_connectors.stores.tier import StoreTier
from core_kv_connectors.tiers.page_file import page_parts
from tests.fuzz.threads import no_thread_dies
from tests.kv.tier_fakes import PAGE_BYTES, PRINT, key, page

NAMES = ("exist", "got")
LIMIT_S = 0.5


def make_answers(folder: Path) -> None:
    """Write the answers of a store that has the page, and look that it arrives. Raises AssertionError."""
    head, values = page_parts(PRINT, 0, key(1), page(1))
    content = head + bytes(values)
    (folder / "exist").write_bytes(ANSWER.pack(FOUND, *(0,) * 8))
    (folder / "got").write_bytes(ANSWER.pack(FOUND, len(content), BINARY, BYTES, len(content), 0, 0, 0, 0) + content)
    assert read_answers(folder) == 1, "a good page does not arrive"


def read_answers(folder: Path) -> int:
    """Have a tier read a page; returns whether it takes it, with the bytes of its tokens. Raises AssertionError."""
    answers = [(folder / name).read_bytes() for name in NAMES]
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError), listening, listening.accept()[0] as connection:  # the reader may have hung up
            for answer in answers:
                if len(connection.recv(REQUEST.size, socket.MSG_WAITALL)) < REQUEST.size:
                    return
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    with no_thread_dies():
        thread.start()
        tier = StoreTier(LMCacheStore("127.0.0.1", listening.getsockname()[1], LIMIT_S), PRINT, PAGE_BYTES)
        try:
            found = tier.read(0, key(1)) if tier.contains(0, key(1)) else None
        finally:
            tier.close(1.0)
        listening.close()
        thread.join(10)
    assert found is None or (found == page(1)).all(), "a page has the bytes of other tokens"
    return int(found is not None)
