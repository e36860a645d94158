"""Trials of the way between two engines: do they agree, how fast is it, and does a page arrive as it was sent?

Owns: both ends of a trial: `answer_trial` at an engine, `Trial` at whoever asks. Never does: send or take the page of a prompt.
Called by: listeners; `core kv check`.
"""

from __future__ import annotations

import socket
import statistics
import time
from types import TracebackType
from typing import Final, Self

import numpy as np

from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.peers.handshake import CHECK, Agreement, terms_of
from core_kv_connectors.peers.messages import SMALL_BYTES, Ask, Found, PeerError, receive, receive_into, send
from core_kv_connectors.tiers.page_file import PageError, check_values, checked_header, page_parts

TRIAL: Final = PrefixKey(b"core kv check", b"")
"""Key of a trial's page, which no block of a prompt has: its digest is too short."""
PING, SEND, TAKE = b"ping", b"send", b"take"
MOST_ASKS: Final = 4096
"""Limit on the questions of one trial."""
MOST_PAGE: Final = 1 << 30
"""Largest page that `Trial` takes memory for, whatever the other end says."""
AHEAD: Final = 16
LIMIT_S: Final = 10.0
NUM_PINGS: Final = 20
ENOUGH_BYTES: Final = 256 << 20
ENOUGH_S: Final = 1.0
"""Bytes and seconds after which the bandwidth is known."""


def answer_trial(connection: socket.socket, agreement: Agreement) -> None:
    """Repeat a word, send a page of random bytes, or verify one and send it back. Raises PeerError, OSError."""
    page = np.random.default_rng().integers(0, 256, agreement.page_bytes, np.uint8)
    parts = page_parts(agreement.fingerprint, 0, TRIAL, page, agreement.secret)
    for _ in range(MOST_ASKS):
        ask = receive(connection, Ask, SMALL_BYTES)
        if ask.ends:
            return
        header, values = b"", page
        if ask.name == SEND:
            header = parts[0][4:]
        elif ask.name == TAKE:
            found = receive(connection, Found)
            values = np.empty_like(page)
            receive_into(connection, values.data.cast("B"))
            header = found.header if is_trial(agreement, found.header, values) else b""
        send(connection, Found(ask.name, header), values.data if header else None)


def is_trial(agreement: Agreement, header: bytes, page: Page) -> bool:
    """Whether a page is a whole page of a trial, from an engine that agrees."""
    try:
        check_values(checked_header(header, agreement.fingerprint, 0, TRIAL), page, agreement.secret)
    except PageError:
        return False
    return True


class Trial:
    """A trial of one engine. secret: of all engines; empty: none. agreement: what the engine says about itself.

    Raises PeerError, OSError.
    """

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        self._connection = socket.create_connection((host, port), LIMIT_S)
        try:
            self._connection.settimeout(LIMIT_S)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            terms = terms_of(self._connection, Agreement(secret, "", 0), CHECK)
            if not 0 < terms.page_bytes <= MOST_PAGE:
                raise PeerError(f"it has pages of {terms.page_bytes} bytes; expected at most {MOST_PAGE}")
        except TimeoutError as error:
            self._connection.close()
            raise PeerError(
                f"it took the connection and said nothing for {LIMIT_S:.0f} s; give kv_ip and kv_port of an engine, whose "
                "API has another port"
            ) from error
        except BaseException:
            self._connection.close()
            raise
        self.agreement = Agreement(secret, terms.fingerprint, terms.page_bytes, terms.transport, terms.shape)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def latency_s(self) -> float:
        """Return the median seconds of a word there and back."""
        times = []
        for _ in range(NUM_PINGS):
            begin = time.perf_counter()
            send(self._connection, Ask(PING))
            receive(self._connection, Found)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def bandwidth(self) -> float:
        """Return the bytes a second at which its pages come here, checksums included."""
        most = min(MOST_ASKS // 2, max(AHEAD, ENOUGH_BYTES // self.agreement.page_bytes))
        begin, asked, count = time.perf_counter(), 0, 0
        while count < most and time.perf_counter() - begin < ENOUGH_S:
            while asked < min(count + AHEAD, most):  # several questions ahead of the answers, as for pages of prompts
                send(self._connection, Ask(SEND))
                asked += 1
            self._received()
            count += 1
        seconds = time.perf_counter() - begin
        for _ in range(asked - count):
            self._received()
        return count * self.agreement.page_bytes / seconds

    def page(self) -> tuple[bytes, Page]:
        """Return the header and the bytes of its page, verified."""
        send(self._connection, Ask(SEND))
        return self._received()

    def there_and_back(self, header: bytes, page: Page) -> Page:
        """Return a page that the engine has received, verified and sent back."""
        send(self._connection, Ask(TAKE))
        send(self._connection, Found(TAKE, header), page.data)
        return self._received()[1]

    def _received(self) -> tuple[bytes, Page]:
        found = receive(self._connection, Found)
        if not found.header:
            raise PeerError("it does not recognize the page that it was sent")
        page = np.empty(self.agreement.page_bytes, np.uint8)
        receive_into(self._connection, page.data.cast("B"))
        if not is_trial(self.agreement, found.header, page):
            raise PeerError("its page arrives damaged")
        return found.header, page
