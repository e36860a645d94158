"""Optional parts of an answer besides its choices and usage: its explanation, receipt, timings and energy.

Owns: `Extras`, which gathers them for one HTTP request. Never does: explain or measure. Called by: routes, answer
writers.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from msgspec import UNSET, UnsetType

from core_apis.protocol.timings import Timings, timings_of
from core_frontend.api.explanation import Explanation
from core_frontend.api.outputs import RequestOutput
from core_observers.energy_use import EnergyUse
from core_observers.receipts.receipt import IssuedReceipt

T = TypeVar("T")


class Asking(Protocol):
    """A body that may request them."""

    n: int | None
    explain: bool | None
    receipt: bool | None
    timings: bool | None
    energy: bool | None


class Answer(Protocol):
    """An answer, or the last chunk of a stream.

    A request with several prompts gets lists, one entry per prompt, in order.
    """

    explain: Explanation | list[Explanation] | UnsetType
    receipt: IssuedReceipt | list[IssuedReceipt] | UnsetType
    timings: Timings | list[Timings] | UnsetType
    energy: EnergyUse | list[EnergyUse] | UnsetType


class Extras:
    """The extras of one HTTP request, from the last outputs of its prompts.

    wanted: whether the request wants any; if not, outputs need not be added.
    """

    def __init__(self, body: Asking) -> None:
        self._times = bool(body.timings)
        self._num_choices = body.n or 1
        self._explanations: dict[int, Explanation] = {}
        self._receipts: dict[int, IssuedReceipt] = {}
        self._timings: dict[int, Timings] = {}
        self._energy: dict[int, EnergyUse] = {}
        self.wanted = self._times or bool(body.explain) or bool(body.receipt) or bool(body.energy)

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Add the extras of an output, if it is the last one of its prompt."""
        if output.explain is not None:
            self._explanations[prompt_index] = output.explain
        if output.receipt is not None:
            self._receipts[prompt_index] = output.receipt
        if output.energy is not None:
            self._energy[prompt_index] = output.energy
        if self._times and output.finished:
            self._timings[prompt_index] = timings_of(output, self._num_choices)

    def tell(self, answer: Answer) -> None:
        """Set the extras in the answer."""
        answer.explain = _one_or_all(self._explanations)
        answer.receipt = _one_or_all(self._receipts)
        answer.timings = _one_or_all(self._timings)
        answer.energy = _one_or_all(self._energy)


def _one_or_all(found: dict[int, T]) -> T | list[T] | UnsetType:
    """Return the only entry, or all in the order of their prompts; UNSET if there is none."""
    ordered = [found[index] for index in sorted(found)]
    if not ordered:
        return UNSET
    return ordered[0] if len(ordered) == 1 else ordered
