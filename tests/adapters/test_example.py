"""`examples/activated_adapter.py` runs, and shows what docs/adapters.md says of activated adapters."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "activated_adapter.py"


@pytest.mark.models
def test_an_activated_adapter_shares_the_prefix_of_the_base() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    cached = [int(count) for count in re.findall(r"(\d+) of them from the cache", done.stdout)]
    assert len(cached) == 4
    assert cached[0] == 0
    assert min(cached[1:]) > 150  # all whole blocks of the document
    assert "the adapter changes answers: True" in done.stdout
    assert "and none without its invocation: True" in done.stdout
