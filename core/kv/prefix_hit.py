"""The result of a prefix search: the prefix of a sequence that the cache can serve.

Owns: `PrefixHit` and `PageLoad`. Never does: search or take blocks. Called by: the prefix search (creates it), the manager, the
scheduler, explainers of misses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from core.api.kv_transfer import Page


class PageLoad(NamedTuple):
    """A block whose page a connector has, with the entry of the table of `group` that it belongs to.

    was_awaited: whether the sequence waited for it, because it came from slow storage.
    """

    group: int
    entry: int
    page: Page
    was_awaited: bool = False


@dataclass(slots=True)
class PrefixHit:
    """A prefix of `num_tokens` tokens: the leading entries of each group's table, and pages to load where these are 0.

    Entries that no later query reads are 0 (the null block) and have no page. The tables of states have no entries: the
    sequence gets a copy of the blocks in `state`, or the `state_pages` of a connector.

    num_known_tokens: tokens of the longest prefix cached in the groups that keep every token, with or without a state.
    """

    num_tokens: int
    block_ids: list[list[int]]
    loads: list[PageLoad] = field(default_factory=list)
    state: list[int] = field(default_factory=list)
    state_pages: list[Page] = field(default_factory=list)
    num_known_tokens: int = 0
