"""Copies of weights from host memory in a step, ahead of the blocks that compute with them.

Owns: the order of copies and blocks. Never does: know a weight, or allocate. Called by: the decoder, around each block.

All copies of a pass begin in it, and each is awaited in it, so the calls can be recorded with those of the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from core_runtime.contracts import Event, FetchesWeights

Copies = Mapping[int, Sequence[tuple[Tensor, Tensor]]]
"""Number of a block → (memory on the device, host memory) of each of its parts; blocks in the order of a pass."""


class LayerFetch:
    """The copies of one model. runtime: its device.

    copies: of each block whose weights lie in host memory.
    num_slots: blocks that have memory on the device at the same time; block n shares that of block n + num_slots.
    """

    def __init__(self, runtime: FetchesWeights, copies: Copies, num_slots: int) -> None:
        self._runtime = runtime
        self._copies = list(copies.values())
        self._places = {block: place for place, block in enumerate(copies)}
        self._num_slots = num_slots
        self._done: dict[int, Event] = {}

    def begin(self) -> None:
        """Begin a pass: fill all slots, which the previous pass has left."""
        self._done.clear()
        free = self._runtime.event()
        for place in range(min(self._num_slots, len(self._copies))):
            self._fetch(place, free)

    def before(self, block: int) -> None:
        """Let the kernels of a block wait for its weights."""
        place = self._places.get(block)
        if place is not None:
            self._runtime.wait_aside(self._done.pop(place))

    def after(self, block: int) -> None:
        """Begin to copy the weights of the block that comes next into the slot of a block whose kernels were called."""
        place = self._places.get(block)
        if place is not None and place + self._num_slots < len(self._copies):
            self._fetch(place + self._num_slots, self._runtime.event())

    def _fetch(self, place: int, after: Event) -> None:
        for target, source in self._copies[place]:
            self._done[place] = self._runtime.fetch(target, source, after)
