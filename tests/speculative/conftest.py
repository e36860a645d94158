"""Fixtures of the tests of drafts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Oracles multiply tiny matrices, for which torch's threads wait for each other much longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def expected(tiny_llama: Path) -> list:
    """The answers of the tiny llama without drafts, bit for bit."""
    from tests.speculative.test_draft_model import run

    bits, _ = run(tiny_llama)
    return bits
