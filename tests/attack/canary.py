"""An honest client beside an attack: how long it waits for /health, compared with a quiet server.

Owns: the measurement and its check. Never does: attack. Called by: the phases.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.attack.probe import probing
from tests.attack.results import Phase
from tests.attack.send import Target

ALLOWED_S = 0.1
"""How much longer the longest wait may be than that of a quiet server: a busy machine makes both longer."""
QUIET_S = 3.0


@contextmanager
def canary(phase: Phase, target: Target, what: str) -> Iterator[None]:
    """Measure while the body attacks. what: names the attack in the check."""
    with probing(target) as quiet:
        time.sleep(QUIET_S)
    limit = max(quiet.health, default=0.0) + ALLOWED_S
    with probing(target, limit_s=3600.0) as measured:
        yield
    phase.at_most(f"longest wait of a canary beside {what}", max(measured.health, default=99.0), limit)
    series = f"/health, beside {what}"
    phase.series[series], phase.limits[series] = measured.health, limit
