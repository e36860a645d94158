"""Checks of logits processors: the result of a row depends on that row alone.

Owns: the checks. Never does: judge whether a change is wise. Called by: `core_kit.suite`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.api.sampling_params import SamplingParams
from core.plugin.table import load_plugin
from core_kit.case import Failure, Skipped, Subject
from core_runtime.contracts import BatchChanges, HasExampleParams, LogitsRow, NeedsOrder

VOCABULARY = 97
NUM_ROWS = 5
NUM_STEPS = 4
UNKNOWN = ("nobody", 0)


class Text:
    """A sequence that a processor changes. number: its identity."""

    def __init__(self, number: int, params: SamplingParams) -> None:
        self.key = (f"r{number}", 0)
        self.params = params
        source = np.random.default_rng(number)
        self.prompt = source.integers(0, VOCABULARY, 3 + number, np.int32)
        self.output = source.integers(0, VOCABULARY, 2 * NUM_STEPS + number, np.int32)
        self.logits = torch.from_numpy(source.normal(0, 3, (len(self.output) + 1, VOCABULARY)).astype(np.float32))

    def row(self, position: int, num_drafted: int = 0) -> LogitsRow:
        """Return its row after `position` output tokens."""
        return LogitsRow(self.key, self.params, self.prompt, self.output[:position], num_drafted)


def answers_logits(subject: Subject) -> None:
    """Logits come back as float numbers of the same shape, finite or -inf."""
    processor, texts = _begun(subject)
    for text in texts:
        for position in range(NUM_STEPS):
            _apply(processor, [text], [position])


def takes_its_own_params(subject: Subject) -> None:
    """Parameters that it wants are valid, and those of a plain request raise nothing."""
    processor = _fresh(subject)
    processor.validate_params(SamplingParams())
    processor.wants(SamplingParams())
    processor.validate_params(_wanted(processor))


def is_the_same_in_company(subject: Subject) -> None:
    """A row becomes the same by itself and beside others, to the bit."""
    processor, texts = _begun(subject)
    alone, _ = _begun(subject)
    for position in range(NUM_STEPS):
        together = _rows(processor, texts, position)
        for index, text in enumerate(texts):
            by_itself = _apply(alone, [text], [position])
            if not torch.equal(together[index], by_itself[0]):
                raise Failure(
                    f"row {index} of {len(texts)} differs from the same row by itself, at position {position}: what a row "
                    "becomes must depend on its own logits, parameters and tokens alone"
                )


def forgets_drafts(subject: Subject) -> None:
    """A row becomes the same when it comes again, after drafts that are gone."""
    processor, (text, *_) = _begun(subject)
    if isinstance(processor, NeedsOrder) and processor.needs_order:
        raise Skipped("it needs order, so its sequences have no drafts")
    first = _apply(processor, [text], [1])
    for num_drafted in (1, 2):
        row = text.row(1 + num_drafted, num_drafted)
        processor.apply(text.logits[1 + num_drafted][None].clone(), [row])
    again = _apply(processor, [text], [1])
    if not torch.equal(first, again):
        raise Failure("a row that came again, after drafts were tried behind it, became something else")


def keeps_the_largest(subject: Subject) -> None:
    """Where it says that it is argmax-invariant, the largest logit stays the largest."""
    processor, texts = _begun(subject)
    if not isinstance(processor.is_argmax_invariant, bool):
        raise Failure(f"is_argmax_invariant is {processor.is_argmax_invariant!r}, expected True or False")
    if not processor.is_argmax_invariant:
        raise Skipped("it does not say so")
    for text in texts:
        for position in range(NUM_STEPS):
            changed = _apply(processor, [text], [position])
            if int(changed[0].argmax()) != int(text.logits[position].argmax()):
                raise Failure("another logit became the largest; is_argmax_invariant must be False")


def lets_go(subject: Subject) -> None:
    """The end of sequences is taken at any time, of those that it never heard of as well."""
    processor, texts = _begun(subject)
    processor.update(BatchChanges(finished=[UNKNOWN]))
    for text in texts:
        processor.update(BatchChanges(finished=[text.key]))
    again = _fresh(subject)
    again.update(BatchChanges(started=[(texts[0].key, texts[0].params)]))
    again.update(BatchChanges(finished=[texts[0].key]))


CHECKS: tuple[Callable[[Subject], None], ...] = (
    takes_its_own_params,
    answers_logits,
    is_the_same_in_company,
    forgets_drafts,
    keeps_the_largest,
    lets_go,
)


def _fresh(subject: Subject) -> Any:
    assert subject.loaded is not None
    return load_plugin(subject.manifest, subject.context())


def _wanted(processor: Any) -> SamplingParams:
    """Return parameters of a request that the processor changes. Raises Skipped when it names none."""
    has_example = isinstance(processor, HasExampleParams)
    params: SamplingParams = processor.example_params() if has_example else SamplingParams()
    if processor.wants(params):
        return params
    if has_example:
        raise Failure("it does not want its own example_params")
    raise Skipped("it changes nothing for a plain request; give it example_params")


def _begun(subject: Subject) -> tuple[Any, list[Text]]:
    """Return a processor, and sequences that were announced to it."""
    processor = _fresh(subject)
    params = _wanted(processor)
    texts = [Text(number, params) for number in range(NUM_ROWS)]
    for text in texts:
        processor.update(BatchChanges(started=[(text.key, params)]))
    return processor, texts


def _rows(processor: Any, texts: Sequence[Text], position: int) -> Tensor:
    """Return one position of all sequences as the engine requests it: one at a time where order matters."""
    if isinstance(processor, NeedsOrder) and processor.needs_order:
        return torch.cat([_apply(processor, [text], [position]) for text in texts])
    return _apply(processor, texts, [position] * len(texts))


def _apply(processor: Any, texts: Sequence[Text], positions: Sequence[int]) -> Tensor:
    """Return the changed logits of some rows. Raises Failure for results that are not logits."""
    pairs = list(zip(texts, positions, strict=True))
    given = torch.stack([text.logits[position] for text, position in pairs])
    rows = [text.row(position) for text, position in pairs]
    expected = tuple(given.shape)
    changed = processor.apply(given.clone(), rows)
    if not isinstance(changed, Tensor) or tuple(changed.shape) != expected or not changed.is_floating_point():
        what = f"{changed.dtype} {tuple(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
        raise Failure(f"apply answered {what}, expected float32 {expected}")
    if bool((changed.isnan() | (changed == torch.inf)).any()):
        raise Failure("apply answered NaN or infinite logits; expected finite numbers and -inf")
    return changed.clone()
