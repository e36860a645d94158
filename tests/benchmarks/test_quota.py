"""Shares of processors in benchmarks: a process is held to its quota, and the table says what part of a share was used."""

import os
import subprocess
import sys
import time

import pytest

from benchmarks.quota import rows, table
from benchmarks.share import Group, StandIn, many_visible

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
BUSY = [sys.executable, "-c", "while True: pass"]


def used(pid):
    return time.clock_gettime(~pid << 3 | 2)


def test_the_stand_in_holds_a_process_to_its_quota():
    process = subprocess.Popen(BUSY)
    stand_in = StandIn(0.3)
    try:
        stand_in.watch(process.pid)
        before, begin = used(process.pid), time.monotonic()
        time.sleep(0.6)
        share = (used(process.pid) - before) / (time.monotonic() - begin)
        assert 0 < share < 0.6
    finally:
        stand_in.close()
        process.kill()
        process.wait()


def test_a_group_that_can_be_made_limits_what_starts_in_it_and_goes_again():
    try:
        group = Group(0.3)
    except OSError:
        pytest.skip("needs a control group of its own")
    process = subprocess.Popen([*group.prefix(), *BUSY])
    try:
        time.sleep(0.6)
        assert used(process.pid) < 0.5
    finally:
        process.kill()
        process.wait()
        group.close()
    assert not group.path.exists()


def test_processors_that_are_not_there_are_seen(tmp_path):
    try:
        environment = many_visible(tmp_path)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a C compiler")
    ask = "import os; print(len(os.sched_getaffinity(0)), os.cpu_count())"
    seen = subprocess.check_output([sys.executable, "-c", ask], env=os.environ | environment, text=True)
    assert seen.split() == ["32", "32"]


def test_the_table_counts_against_the_full_speed_and_the_share():
    found = rows(processors=2)
    for row, rate in zip(found, (100.0, 30.0, 50.0, 75.0, 100.0, 60.0, 90.0), strict=True):
        row.rates = [rate, rate + 1, rate - 1]
    lines = table(found, "control group").splitlines()
    assert "| 0.5 processors | 30.0 | 30% | 120% | 0 |" in lines
    assert "| beside a busy neighbour | 60.0 | 60% | 80% | 0 |" in lines
