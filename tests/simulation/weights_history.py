"""Which weights an engine had, one after the other, and what trainers and clients know of them.

Owns: `WeightsHistory`, and what must hold of it: updates in parts whole, none taken back that somebody knows of. Never does:
compute. Called by: the reloader (has new weights), fronts (trainers' calls), answers (tokens that clients have).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.weights import Weights

if TYPE_CHECKING:
    from tests.simulation.world import World


class WeightsHistory:
    """states: in their order. newest_known: index of the newest one that an acknowledgement or a token has told of.

    trainer: held by the trainer at work. gathers: whether an update in parts was begun and has not come to its end.
    """

    def __init__(self, world: World) -> None:
        self.states: list[Weights] = []
        self.newest_known = 0
        self.trainer = asyncio.Lock()
        self.gathers = False
        self._world = world
        self._num_updates = 0
        self._begins_anew = False

    def begin_new_file(self) -> None:
        """The whole server has died: the next one has the weights of the checkpoint."""
        self.trainer = asyncio.Lock()
        self.gathers = False
        self._begins_anew = True

    def new_update(self) -> str:
        """The name of a single update."""
        self._num_updates += 1
        return f"u{self._num_updates}"

    def new_group(self) -> str:
        """The name of updates that belong together."""
        self._num_updates += 1
        return f"g{self._num_updates}"

    def become(self, weights: Weights, *, starts: bool = False) -> None:
        """The engine's weights are these from now on. starts: a new engine begins with them."""
        self._check_whole(weights)
        states = self.states
        if states and states[-1] == weights and not self._begins_anew:
            return
        if starts and self._begins_anew:
            self._begins_anew = False
            self.newest_known = len(states)
        elif starts and states and not self._world.record_lost and weights not in states[self.newest_known :]:
            names = "+".join(weights.names) or "the checkpoint"
            self._world.violated("rolled_back", f"after a death the weights are {names}, and newer ones were in use")
        states.append(weights)

    def acknowledged(self, names: tuple[str, ...]) -> None:
        """A trainer was told that its update is in use."""
        for place in range(len(self.states) - 1, -1, -1):
            if set(names) <= set(self.states[place].names):
                self.seen(place)
                return
        self._world.violated("not_applied", f"{'+'.join(names)} was acknowledged and never applied")

    def refused(self, names: tuple[str, ...], error: Exception) -> None:
        """A trainer was told that nothing has changed."""
        if self.states and set(names) & set(self.states[-1].names):
            self._world.violated("refused", f"{'+'.join(names)} is in use, and its sender was told: {error}")

    def seen(self, place: int) -> None:
        """Somebody knows of these weights: no later engine goes back behind them."""
        self.newest_known = max(self.newest_known, place)

    def _check_whole(self, weights: Weights) -> None:
        """All parts of the newest update in parts are in use; newer ones may have replaced some of an older one."""
        groups: dict[str, set[str]] = {}
        for name in weights.names:
            group, dot, part = name.partition(".")
            if dot:
                groups.setdefault(group, set()).add(part)
        for group in list(groups)[-1:]:
            count = int(next(iter(groups[group])).partition("/")[2])
            if len(groups[group]) != count:
                self._world.violated("half", f"of the update {group} only {sorted(groups[group])} are in use")
