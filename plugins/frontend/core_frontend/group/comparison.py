"""Whether the pages of a running request go along when it changes engines, or are computed again.

Owns: `Comparison`, both sides in seconds. Never does: ask an engine, or move anything. Called by: the moves of a group.

The times that both sides share, such as the wait for a place in the other engine's batch, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.scheduler.step_cost import StepCost
from core_frontend.quote.link import Link


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both ways of one request.

    compute_s: seconds until all of its tokens are computed again; None: nothing can be foretold.
    move_s:    seconds until its pages are there and what they lack is computed; None likewise.
    why:       where it is not a matter of time.
    """

    compute_s: float | None = None
    move_s: float | None = None
    why: str = ""

    @property
    def moves(self) -> bool:
        """Whether its pages go along."""
        return self.move_s is not None and self.compute_s is not None and self.move_s < self.compute_s

    @property
    def reason(self) -> str:
        """Return why, as a sentence."""
        if self.why:
            return self.why
        return (
            "moving its pages was foretold to be faster"
            if self.moves
            else "computing it again was foretold to be faster"
        )


def lengths_of(num_prompt_tokens: int, given: Sequence[int]) -> list[int]:
    """Return the lengths whose bytes a comparison needs: of the prompt, and of the prompt with each choice's tokens."""
    return [num_prompt_tokens, *(num_prompt_tokens + count for count in given)]


def compare(
    facts: Mapping[str, Any], num_prompt_tokens: int, given: Sequence[int], link: Link, *, budget: int, block_size: int
) -> Comparison:
    """Compare.

    facts: what `step_costs` of the engine says of `lengths_of`. given: generated tokens of each choice that runs. link: to
    the other engine. budget: most tokens of a step. block_size: tokens of a block; open ones are computed anyway.
    """
    state = facts["cost"]
    if state is None:
        return Comparison(why="the engine has computed too little yet for a comparison")
    cost = StepCost.restored(state)
    prompt, each = num_prompt_tokens, list(given)
    num_tokens = prompt + sum(each)
    # A token reads the keys of all before it; choices share those of the prompt, which are computed once.
    num_keys = prompt * prompt // 2 + sum(count * prompt + count * count // 2 for count in each)
    num_steps = -(-num_tokens // budget)
    compute_s = cost.predict(num_tokens, 0, 0, num_keys) + (num_steps - 1) * cost.predict(0, 0, 0)
    shared, *whole = facts["bytes"]
    num_bytes = sum(whole) - (len(whole) - 1) * shared
    num_open = block_size * len(each)
    move_s = link.seconds(num_bytes) + cost.predict(num_open, 0, 0, num_open * prompt)
    return Comparison(compute_s, move_s)
