"""A conversation that is too long for the context, without its beginning: `truncation: auto`.

Owns: what is left out. Never does: count tokens (the attempts do). Called by: `core_apis.preparation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from core.api.errors import RequestError
from core_apis.responses.conversation import INSTRUCTING, Item, item_kind

T = TypeVar("T")

TOO_LONG = "context_length_exceeded"


def shortened(items: list[Item], attempt: Callable[[list[Item]], T]) -> T:
    """The result of `attempt` with as many of the last items as fit, and with all that instructs before the first of them.

    What is kept begins with a message of the user: an answer or a tool's output without what it answers means nothing.
    Raises RequestError, that of all items when no part of them fits.
    """
    try:
        return attempt(items)
    except RequestError as error:
        if error.code != TOO_LONG:
            raise
        too_long = error
    head = _num_instructing(items)
    starts = [index for index in range(head + 1, len(items)) if _begins_turn(items[index])]
    found: T | None = None
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        try:
            found = attempt(items[:head] + items[starts[middle] :])
            high = middle
        except RequestError as error:
            if error.code != TOO_LONG:
                raise
            low = middle + 1
    if found is None:
        raise too_long
    return found


def _num_instructing(items: list[Item]) -> int:
    for index, item in enumerate(items):
        if item.get("role") not in INSTRUCTING:
            return index
    return len(items)


def _begins_turn(item: Item) -> bool:
    return item_kind(item) == "message" and item.get("role") == "user"
