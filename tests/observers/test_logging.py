"""Log lines name the process and come once."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import logging_setup
from core.api.errors import UserError
from core.engine.observer import EngineStart
from core.logging_setup import LOGGERS, log_line
from core_config.served.log_file import log_config
from core_observers.engine.flood_guard import FloodGuard
from core_observers.logging import setup_logging
from tests.engine.fakes import make_config


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    names = (*LOGGERS, "some.library", "uvicorn.access")
    kept = [(logging.getLogger(name), logging.getLogger(name).handlers[:]) for name in names]
    states = [(logger, handlers, logger.level, logger.propagate) for logger, handlers in kept]
    yield
    for logger, handlers, level, propagate in states:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_one_line_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("warning", "first")
    setup_logging("info", "engine")
    logging.getLogger("core.engine.core").info("text %d", 7)
    logging.getLogger("core_loaders").debug("hidden")
    logging.getLogger("other").info("not ours")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("INFO engine core.engine.core: text 7")


def test_libraries_log_in_the_same_form_at_their_own_level(capsys: pytest.CaptureFixture[str]) -> None:
    library = logging.getLogger("some.library")
    library.setLevel(logging.WARNING)
    setup_logging("info", "server", libraries=["some.library"])
    library.info("hidden")
    library.warning("told")
    library.warning("told")
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1 and shown[0].endswith("WARNING server some.library: told")
    early = log_line("told", logging.WARNING, "server")
    assert early.split(" ", 1)[1] == "WARNING server core: told"


def test_a_file_of_the_users_own_decides(tmp_path: Path) -> None:
    target = tmp_path / "out.log"
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"short": {"format": "%(levelname)s|%(message)s"}},
        "handlers": {"file": {"class": "logging.FileHandler", "filename": str(target), "formatter": "short"}},
        "loggers": {"core": {"handlers": ["file"], "level": "DEBUG"}},
    }
    setup_logging("info", "engine", config=config)
    logging.getLogger("core.engine.core").debug("text %d", 7)
    assert target.read_text() == "DEBUG|text 7\n"
    for handler in logging.getLogger("core").handlers:
        handler.close()


def test_a_level_is_that_of_all_our_loggers_and_changes_no_format(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", "engine", config=log_config(None, "DEBUG"))
    logging.getLogger("core_loaders").debug("told")
    setup_logging("info", "engine", config=log_config(None, "error"))
    logging.getLogger("core.engine").warning("hidden")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("DEBUG engine core_loaders: told")
    assert log_config(None) == {}


def test_a_file_that_asks_for_what_is_not_there_is_told() -> None:
    wrong = {"version": 1, "handlers": {"file": {"class": "no.such.Handler"}}}
    with pytest.raises(UserError, match="--log-config-file"):
        setup_logging("info", "engine", config=wrong)


def test_looks_of_the_page_are_not_in_the_access_log(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(process="server", libraries=["uvicorn.access"])
    logger = logging.getLogger("uvicorn.access")
    logger.setLevel(logging.INFO)
    for path, status in (("/metrics?look", 200), ("/metrics", 200), ("/health?look", 503), ("/v1/x?look=", 200)):
        logger.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "GET", path, "1.1", status)
    logged = [line.partition('"')[2] for line in capsys.readouterr().err.splitlines()]
    assert logged == ['GET /metrics HTTP/1.1" 200', 'GET /health?look HTTP/1.1" 503', 'GET /v1/x?look= HTTP/1.1" 200']


def test_the_log_of_an_engine_process_is_kept_from_floods(capsys: pytest.CaptureFixture[str]) -> None:
    logging_setup.setup_logging("info", "engine")
    start = EngineStart(make_config())
    for _ in range(2):
        assert FloodGuard.open(start) is None
    for number in range(100):
        logging.getLogger("core_runtime.executor").warning("It repeats: %d", number)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "It repeats: 0" in lines[0]
