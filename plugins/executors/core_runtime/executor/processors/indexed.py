"""Adapter from a logits processor written for vLLM to the engine's own contract.

Owns: the objects of such a class, one for each running sequence, and their updates. Never does: catch their exceptions
(`core_runtime.executor.processors.logits_processors` does). Called by: it, as a `LogitsProcessor` that needs order.

Every sequence is alone in the batch of its object: so no result depends on the batch, and an object that fails affects one
request. Objects are reused after their sequence has left, so there are as many as sequences ran at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core.api.sampling_params import SamplingParams
from core_runtime.contracts import BatchChanges, LogitsRow
from core_runtime.contracts.indexed_processor import BatchUpdate, LogitsProcessor

if TYPE_CHECKING:
    from torch import Tensor

ALONE = 1
"""Requests in the batch of an object."""


@dataclass(slots=True)
class Use:
    """One object in use.

    output: the list that the object was given; it grows with the sequence.
    is_begun: whether it has received its sequence.
    is_sound: whether its latest call returned.
    """

    processor: LogitsProcessor
    output: list[int] = field(default_factory=list)
    is_begun: bool = False
    is_sound: bool = True


class IndexedProcessor:
    """A vLLM logits processor as `core_runtime.contracts.LogitsProcessor` and `NeedsOrder`.

    make: builds an object of the class; called once at first, and whenever more sequences run than ever before.
    is_argmax_invariant: as the class says.
    """

    needs_order = True

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        first = make()
        self.is_argmax_invariant = bool(first.is_argmax_invariant())
        self._validate = getattr(first, "validate_params", None)
        self._by_request = getattr(first, "new_req_logits_processor", None)
        self.free: list[Any] = [first]
        self.uses: dict[tuple[str, int], Use] = {}

    def validate_params(self, params: SamplingParams) -> None:
        """Validate with the class, if it has a method for that."""
        if self._validate is not None:
            self._validate(params)

    def wants(self, params: SamplingParams) -> bool:
        """Whether the class changes logits for such a request. True unless the class can answer; most cannot."""
        return self._by_request is None or self._by_request(params) is not None

    def update(self, changes: BatchChanges) -> None:
        """Release the objects of sequences that have left, unless they failed. New sequences get one with their first row."""
        for key in changes.finished:
            use = self.uses.pop(key, None)
            if use is None or not use.is_sound:
                continue
            if use.is_begun:
                use.processor.update_state(BatchUpdate(0, removed=[0]))
            self.free.append(use.processor)

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> Tensor:
        """Return the changed logits of one row, [1, V]."""
        (row,) = rows
        use = self.uses.get(row.key)
        if use is None:
            processor = self.free.pop() if self.free else self._make()
            use = self.uses[row.key] = Use(processor)
        # Set before the call: an exception leaves it, and the object's state can then no longer be trusted.
        use.is_sound = False
        self._sync_position(use, row)
        changed = use.processor.apply(logits)
        use.is_sound = True
        return changed

    def _sync_position(self, use: Use, row: LogitsRow) -> None:
        """Update an object to the row's position."""
        # a step that failed is computed again, from fewer tokens; the list itself must stay the same object
        del use.output[len(row.output) :]
        use.output += row.output[len(use.output) :].tolist()
        if use.is_begun:
            use.processor.update_state(None)
            return
        use.is_begun = True
        prompt: list[int] = row.prompt.tolist()
        use.processor.update_state(BatchUpdate(ALONE, added=[(0, row.params, prompt, use.output)]))
