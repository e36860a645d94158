"""Truncation of a conversation that is too long for the context, at its start: `truncation: auto`.

Owns: which items are dropped. Never does: count tokens (the attempts do). Called by: `core_apis.prepare.preparation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from core.api.errors import RequestError
from core_apis.responses.conversation import INSTRUCTING, Item, item_kind

T = TypeVar("T")

TOO_LONG = "context_length_exceeded"


def shortened(items: list[Item], attempt: Callable[[list[Item]], T]) -> T:
    """Return the result of `attempt` with the instructions at the start and as many of the last items as fit.

    The kept part begins with a message of the user: an answer or a tool's output means nothing without its question or
    call. Raises RequestError: the one for all items if no part of them fits.
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
