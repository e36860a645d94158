"""Deadlines of requests, enforced even if the engine does not enforce them.

Owns: the alarm, and the message for requests that time out. Never does: end a request. Called by: `AsyncEngine`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DEADLINE_GRACE_S = 0.5
"""Seconds after a request's deadline within which the engine should end it itself, with everything generated until
then.
"""


@contextmanager
def alarm(deadline: float, ring: Callable[[float], None]) -> Iterator[None]:
    """Call `ring` if the block lasts beyond a deadline, with the monotonic seconds at which it began.

    deadline: monotonic seconds; 0.0: none.
    """
    if not deadline:
        yield
        return
    begin = time.monotonic()
    delay = deadline - begin + DEADLINE_GRACE_S
    handle = asyncio.get_running_loop().call_later(delay, ring, begin)
    try:
        yield
    finally:
        handle.cancel()


def overdue_sentence(begin: float, *, pauses: bool) -> str:
    """Return the reason why a request ends.

    begin: the argument of `ring`. pauses: whether the engine is being restarted.
    """
    why = "it is busy with a long step, or it hangs (/health tells)"
    if pauses:
        why = "it died and is being started again"
    return (
        f"The request's time was up after {time.monotonic() - begin:.1f} s, and the engine did not end it: {why}. "
        "Give the request a longer timeout."
    )
