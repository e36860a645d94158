"""Signals as a terminal leaves them."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def interrupts_are_heard() -> Iterator[None]:
    """A suite that a script starts in the background ignores SIGINT, and so would every command that it starts."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
