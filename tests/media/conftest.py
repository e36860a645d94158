"""Tiny checkpoints with towers, made once a session."""

from pathlib import Path

import pytest

from tests.media.checkpoints import save_llava


@pytest.fixture(scope="session")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llava(tmp_path_factory.mktemp("llava"))
