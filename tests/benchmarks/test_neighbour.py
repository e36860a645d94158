"""What a neighbour costs: it has the nice value that was asked for, and the table compares rounds with their own full speed."""

import os
import sys

import pytest

from benchmarks.neighbour import fair_part, table
from benchmarks.share import neighbour


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_neighbour_has_its_nice_value_and_ends():
    with neighbour(19) as pid:
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with neighbour(None) as pid:
        assert pid == 0


def test_a_neighbour_is_entitled_to_as_much_as_a_compute_thread_of_equal_weight():
    assert fair_part(0, 2) == pytest.approx(1 / 3)
    assert fair_part(0, 1) == pytest.approx(1 / 2)
    assert fair_part(19, 2) < 0.01


def test_the_table_compares_each_round_with_its_own_full_speed():
    rates = {
        ("core", "decode", "alone"): [100.0, 50.0, 200.0],
        ("core", "decode", "nice 19"): [95.0, 48.0, 190.0],
        ("core", "decode", "nice 0"): [60.0, 30.0, 120.0],
    }
    received = {"core decode nice 19": [0.02, 0.02, 0.03], "core decode nice 0": [0.7, 0.6, 0.65]}
    lines = table(rates, received, processors=2).splitlines()
    assert "| core | decode | alone | 100.0 |  |  |  |" in lines
    assert "| core | decode | nice 19 | 95.0 | 5% | 2% | 0.7% |" in lines
    assert "| core | decode | nice 0 | 60.0 | 40% | 65% | 33.3% |" in lines
