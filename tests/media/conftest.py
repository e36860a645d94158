"""Tiny checkpoints with towers and encoders, made once a session."""

from pathlib import Path

import pytest

from tests.media.checkpoints import save_llava
from tests.media.whisper import save_whisper


@pytest.fixture(scope="session")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="session")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_whisper(tmp_path_factory.mktemp("whisper"))
