"""Fixtures of the tests of drafts."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def expected(tiny_llama: Path) -> list:
    """The answers of the tiny llama without drafts, bit for bit."""
    from tests.speculative.test_draft_model import run

    bits, _ = run(tiny_llama)
    return bits
