"""A flood of the same record is one line a minute with a count; nothing else is held back."""

import logging
from collections.abc import Iterator

import pytest

from core_observers.log_repeats import MAX_KINDS, RepeatFilter


class Unprintable:
    def __str__(self) -> str:
        raise AssertionError("a record that is held back was formatted")


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, list[str], list[float]]]:
    """A logger with the filter, what passed, and its clock."""
    passed: list[str] = []
    now = [1000.0]
    handler, limit = logging.Handler(), RepeatFilter(60.0, lambda: now[0])
    handler.emit = lambda record: passed.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("repeats")
    logger.addHandler(handler)
    logger.addFilter(limit)
    yield logger, passed, now
    logger.removeHandler(handler)
    logger.removeFilter(limit)


def test_once_a_minute_with_the_number_of_those_held_back(log: tuple[logging.Logger, list[str], list[float]]) -> None:
    logger, passed, now = log
    logger.warning("The page %s was not written.\n", "a")
    for _ in range(633):
        logger.warning("The page %s was not written.\n", Unprintable())
    logger.error("The page %s was not written.\n", "an error is another kind")
    now[0] += 61
    logger.warning("The page %s was not written.\n", "b")
    now[0] += 61
    logger.warning("The page %s was not written.\n", "c")
    assert passed == [
        "The page a was not written.\n",
        "The page an error is another kind was not written.\n",
        "The page b was not written. (633 more like it in the last 61 s)",
        "The page c was not written.\n",
    ]


def test_what_is_no_warning_passes(log: tuple[logging.Logger, list[str], list[float]]) -> None:
    logger, passed, _ = log
    logger.setLevel(logging.INFO)
    for _ in range(5):
        logger.info("a request")
    assert len(passed) == 5


def test_another_cause_of_the_same_message_is_seen(log: tuple[logging.Logger, list[str], list[float]]) -> None:
    logger, passed, _ = log

    def fail(how: int) -> None:
        if how == 0:
            raise ValueError("a")
        if how == 1:
            raise KeyError("b")
        raise ValueError("c")

    for _ in range(3):
        for how in range(3):
            try:
                fail(how)
            except LookupError:
                logger.exception("It failed.")
            except ValueError:
                logger.exception("It failed.")
    assert len(passed) == 3


def test_messages_that_never_repeat_are_bounded_too(log: tuple[logging.Logger, list[str], list[float]]) -> None:
    logger, passed, now = log
    for i in range(5 * MAX_KINDS):
        logger.warning(f"request {i} failed")
    assert len(passed) == MAX_KINDS + 1
    now[0] += 61
    logger.warning("something else")
    logger.warning("request -1 failed")
    assert passed[-2:] == ["something else", "request -1 failed"]
