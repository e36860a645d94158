"""Log lines name the process and come once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from core.observe.logging import LOGGERS, setup_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    kept = [(logging.getLogger(name), logging.getLogger(name).handlers[:]) for name in LOGGERS]
    states = [(logger, handlers, logger.level, logger.propagate) for logger, handlers in kept]
    yield
    for logger, handlers, level, propagate in states:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_one_line_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("warning", "first")
    setup_logging("info", "engine")
    logging.getLogger("core.engine.core").info("text %d", 7)
    logging.getLogger("core_plugins.loaders").debug("hidden")
    logging.getLogger("other").info("not ours")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("INFO engine core.engine.core: text 7")
