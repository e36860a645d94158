"""Fixtures for the whole suite: tiny random checkpoints, made once a session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["TRITON_INTERPRET"] = "1"
"""Tests of Triton's kernels run in its interpreter, which must be asked for before anything imports triton."""

SHARED = ("cuda", "external")
"""Folders whose files share a costly fixture: one process runs all of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, the tests of a file stay together and share what it makes."""
    here = Path(__file__).parent
    for item in items:
        part = item.path.relative_to(here).parts[0]
        item.add_marker(pytest.mark.xdist_group(part if part in SHARED else str(item.path)))


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama checkpoint of random weights, with a byte tokenizer and a chat template."""
    from tests.tiny_models import save_checkpoint

    return save_checkpoint(tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def tiny_gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the gemma3 family, with sliding windows of 24 tokens."""
    from tests.tiny_models import save_checkpoint

    return save_checkpoint(tmp_path_factory.mktemp("tiny_gemma3"), family="gemma3")


@pytest.fixture(scope="session")
def tiny_lfm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the lfm2 family: three short convolutions and one layer with full attention."""
    from tests.tiny_models import save_checkpoint

    return save_checkpoint(tmp_path_factory.mktemp("tiny_lfm2"), family="lfm2")
