"""Sixty hostile requests at once stop nobody, and what they took of memory comes back.

`make attack` measures the same on a machine of its own, against the strict limit; here other tests run beside it.
"""

import time
from pathlib import Path

import psutil
import pytest

from tests.attack.arena import Arena
from tests.attack.phase_stalls import VOLLEY, fire, volley
from tests.attack.probe import probing

ALLOWED_S = 1.0
GROWN_BYTES = 150 * 2**20


@pytest.mark.slow
def test_sixty_hostile_requests_stop_neither_streams_nor_probes(tmp_path: Path) -> None:
    arena = Arena(tmp_path, seed=1)
    with arena.server() as server:
        fire(server.target, volley(arena)[:3], 10)
        process = psutil.Process(server.process.pid)
        before = process.memory_full_info().uss
        with probing(server.target) as quiet:
            time.sleep(1.0)
        with probing(server.target) as beside:
            rows = volley(arena)
            unanswered = fire(server.target, rows, 20)
            time.sleep(0.5)
        assert len(rows) == VOLLEY and unanswered == 0
        assert not quiet.failures and not beside.failures
        assert max(beside.health) < max(quiet.health) + ALLOWED_S
        assert max(beside.gaps) < max(quiet.gaps) + ALLOWED_S
        assert len(beside.gaps) > 20
        assert process.memory_full_info().uss < before + GROWN_BYTES
