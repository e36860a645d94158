"""The order in which cached blocks and pages give way when room is needed.

Owns: `LeastRecent`, which is the rule `lru` and the interface of the others, and their loading. Never does: keep blocks or
bytes. Called by: the block pool, and connectors that keep pages in memory.

A name, which the caller chooses, is cached from `cached` until `evict` or `forget`. From `push` to `remove` it may give way;
the pool removes the blocks that are in use. Every call is O(1). Other rules are entry points of the group `EVICTION`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, Generic, TypeVar

from core.api.errors import PluginError
from core.entry_points import load

EVICTION: Final = "core.kv_eviction"
TOKEN_KEYS = 25_000
"""Number of earlier tokens to which attending takes as long as the rest of a token's work; where the cost model begins."""

Name = TypeVar("Name", bound=Hashable)


def worth_of(num_tokens: int) -> float:
    """Return the time, per token, of computing a prefix again, as a multiple of that of a short one.

    All blocks of a prefix are worth the same, so that its tail still gives way before its head.
    """
    return 1.0 + num_tokens / (2 * TOKEN_KEYS)


class LeastRecent(Generic[Name]):
    """`lru`: the name that was pushed first gives way first."""

    def __init__(self) -> None:
        self._listed: OrderedDict[Name, Any] = OrderedDict()

    def __iter__(self) -> Iterator[Name]:
        """Iterate over the names that may give way."""
        return iter(self._listed)

    def cached(self, name: Name, page: Hashable, worth: float, tenant: str = "", size: int = 1) -> None:
        """Add a name that is cached from now on.

        page: what it stands for. worth: see `worth_of`, per byte. tenant: whose it is; empty: nobody's. size: in blocks.
        """

    def hit(self, name: Name, worth: float) -> None:
        """Note that a request found this name, which is not listed at the moment."""

    def push(self, name: Name) -> None:
        """Let a name give way, after all that are listed."""
        self._listed[name] = None

    def remove(self, name: Name) -> None:
        """Let a listed name stay."""
        del self._listed[name]

    def oldest(self) -> Name:
        """Return the name that is to give way next."""
        return next(iter(self._listed))

    def evict(self, name: Name) -> float:
        """Remove a listed name that gives way; returns its worth."""
        self.remove(name)
        return 1.0

    def was_over_share(self, page: Hashable) -> bool:
        """Whether a page gave way lately because its tenant had more than its share."""
        return False

    def forget(self, name: Name) -> None:
        """Drop a name that is not listed and no longer cached."""

    def clear(self) -> None:
        """Drop all names."""
        self._listed.clear()


def load_order(policy: str, share: int | None = None) -> LeastRecent[Any]:
    """Return an empty order of --kv-eviction `policy`. Raises PluginError when it is not installed.

    share: number of blocks that a tenant may have cached while others need room; None: any number.
    """
    order = LeastRecent[Any]() if policy == "lru" else _load(policy)()
    return order if share is None else _load("shares")(order, share)


def _load(name: str) -> Callable[..., LeastRecent[Any]]:
    kind: Callable[..., LeastRecent[Any]] | None = load(EVICTION, name, "core-engine-kv-connectors")
    if kind is None:
        raise PluginError(f"The eviction rule '{name}' comes with core-engine-kv-connectors, which is not installed.")
    return kind
