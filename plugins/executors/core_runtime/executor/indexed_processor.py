"""A logits processor written for vLLM, as one of the engine's own contract.

Owns: the objects of such a class, one for each sequence that runs, and what they are told. Never does: catch what they raise
(`core_runtime.executor.logits_processors` does). Called by: it, as a `LogitsProcessor` that needs order.

Every sequence is alone in the batch of its object: so no bit depends on company, and an object that fails is that of one
request. Objects are used again once their sequence is gone, so there are as many as sequences ran at the same time.
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
    """One object at work.

    output: the list that the object was given; grows with the sequence.
    is_begun: whether it knows its sequence.
    is_sound: whether its latest call came back.
    """

    processor: LogitsProcessor
    output: list[int] = field(default_factory=list)
    is_begun: bool = False
    is_sound: bool = True


class IndexedProcessor:
    """Implements `core_runtime.contracts.LogitsProcessor` and `NeedsOrder`.

    make: builds an object of the class; called at once, and whenever more sequences run than ever before.
    is_argmax_invariant: as the class says.
    """

    needs_order = True

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        first = make()
        self.is_argmax_invariant = bool(first.is_argmax_invariant())
        self._validate = getattr(first, "validate_params", None)
        self._by_request = getattr(first, "new_req_logits_processor", None)
        self._free: list[Any] = [first]
        self._uses: dict[tuple[str, int], Use] = {}

    def validate_params(self, params: SamplingParams) -> None:
        """As the class does, if it does."""
        if self._validate is not None:
            self._validate(params)

    def wants(self, params: SamplingParams) -> bool:
        """Whether the class says that it does nothing for such a request; most cannot say so."""
        return self._by_request is None or self._by_request(params) is not None

    def update(self, changes: BatchChanges) -> None:
        """Objects of sequences that are gone are free again, unless they failed. New ones begin with their first row."""
        for key in changes.finished:
            use = self._uses.pop(key, None)
            if use is None or not use.is_sound:
                continue
            if use.is_begun:
                use.processor.update_state(BatchUpdate(0, removed=[0]))
            self._free.append(use.processor)

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> Tensor:
        """The changed logits of one row, [1, V]."""
        (row,) = rows
        use = self._uses.get(row.key)
        if use is None:
            processor = self._free.pop() if self._free else self._make()
            use = self._uses[row.key] = Use(processor)
        use.is_sound = False
        self._tell(use, row)
        changed = use.processor.apply(logits)
        use.is_sound = True
        return changed

    def _tell(self, use: Use, row: LogitsRow) -> None:
        """Bring an object to the row's position."""
        # a step that failed is computed again, from fewer tokens
        del use.output[len(row.output) :]
        use.output += row.output[len(use.output) :].tolist()
        if use.is_begun:
            use.processor.update_state(None)
            return
        use.is_begun = True
        prompt: list[int] = row.prompt.tolist()
        use.processor.update_state(BatchUpdate(ALONE, added=[(0, row.params, prompt, use.output)]))
