"""The sampler: stages, kernel, errors, log-probabilities; one token for each row of logits.

Owns: the order of things. Never does: keep a state between calls (the rows and their sequences do), or let one row's
result depend on another row. Called by: the model runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from core.plugin.contracts import LogprobsKernel
from core.sampling.acceptance import AcceptanceRule
from core.sampling.bitmask import apply_bitmask
from core.sampling.judge import keep_distribution, position_of, rows_to_judge
from core.sampling.kernel import NO_TOKEN, MaskedKernel, SamplingKernel, masked_race, numpy_race
from core.sampling.logprobs import many_logprobs
from core.sampling.masks import MaskTable, RowMasks, refused
from core.sampling.noise import PURPOSE_DRAFT, PURPOSE_SAMPLE, Float32, Ids
from core.sampling.rows import KernelRows, SampleRows
from core.sampling.stages import Adjusted, adjust

RunCall = Callable[[str, int, Callable[[], None]], None]
"""Runs a call of a kind on a number of rows; it may record the call and replay it for every number of rows."""

SAMPLE: Final = "sample"

ADJUSTED_ROWS: Final = 16
"""Rows that are adjusted at once: what they need besides the logits stays small, and in the caches."""


def sampling_kind(start: int) -> str:
    """The kind of call that samples a step's rows from the start-th on: each has places of its own for its tokens."""
    return f"{SAMPLE} from {start}" if start else SAMPLE


def run_plainly(kind: str, num_rows: int, call: Callable[[], None]) -> None:
    """Run a call and record nothing."""
    call()


class Sampler:
    """Samples rows of logits over a vocabulary of `vocab_size` entries; logits beyond it are padding.

    race, logprobs: native kernels for float32 logits; the same tokens, faster. None: numpy.
    masked: a native kernel that takes token masks; None: rows with masks are copied.
    rule: decides on drafts; None: nobody does, and those are kept that equal what is sampled.
    home: the type of the device that `race` and `masked` work on; `logprobs` works on the host.
    """

    def __init__(
        self,
        vocab_size: int,
        race: SamplingKernel | None = None,
        logprobs: LogprobsKernel | None = None,
        masked: MaskedKernel | None = None,
        rule: AcceptanceRule | None = None,
        home: str = "cpu",
    ) -> None:
        self.vocab_size = vocab_size
        self._home = home
        self.race = race
        self.logprobs = logprobs
        self.masked = masked
        self.rule = rule
        self._masks = MaskTable(vocab_size)
        self._late_masks = MaskTable(vocab_size)
        self._scratch: Float32 = np.empty((0, vocab_size), np.float32)

    @property
    def draft_purpose(self) -> int:
        """Of the noise by which drafts are drawn: the sampler's own, so that they are likely to be drawn again, unless the
        rule has to know what they were drawn from."""
        draws_apart = self.rule is not None and self.rule.draws_apart
        return PURPOSE_DRAFT if draws_apart else PURPOSE_SAMPLE

    def sample(self, logits: Tensor, rows: SampleRows, start: int = 0, run: RunCall = run_plainly) -> None:
        """Sample the rows of a step from `start` on, one for each row of logits: tokens, errors and log-probabilities.

        logits: float32 [R, V], V ≥ vocab_size, not modified.
        run: how the kernel's call on neighbouring rows is made.
        A row with NaN or infinite logits, or with every token masked, fails alone: its error says why.
        """
        shape = logits.shape
        count = shape[0]
        stop = start + count
        if len(shape) != 2 or stop > rows.count or shape[1] < self.vocab_size:
            raise ValueError(
                f"logits have the shape {tuple(shape)}; expected (at most {rows.count - start}, at least {self.vocab_size})."
            )
        adjusted = _between(rows.adjusted, start, stop) if rows.adjusted else []
        lazy, eager = _by_mask(rows, start, stop, adjusted) if rows.masked else ([], [])
        masks = self._masks.ask(rows, eager, start, stop) if eager else None
        if masks is not None:
            adjusted = [row for row in adjusted if row not in masks.ending]
        if not adjusted and masks is None:
            run(sampling_kind(start), count, lambda: self._race(logits, rows.part(start, stop)))
            if rows.on_device is not None:
                rows.fetch(start, stop)
        else:
            self._draw_plain(logits, rows, start, adjusted, masks)
        if lazy:
            self._redraw(logits, rows, start, lazy)
        judged = [] if self.rule is None else rows_to_judge(self.rule, rows, start, stop)
        is_draft = rows.purpose == PURPOSE_DRAFT
        is_plain = not adjusted and not rows.reported and not judged and not is_draft
        if is_plain and not _any_failed(rows.tokens[start:stop]):
            return
        whole = logits.detach()[:, : self.vocab_size]
        values: Float32 = whole.float().cpu().numpy()
        for first in range(0, len(adjusted), ADJUSTED_ROWS):
            some = adjusted[first : first + ADJUSTED_ROWS]
            self._draw_adjusted(values, rows, start, some, masks)
        if judged:
            self._judge(values, rows, start, judged, masks)
        if is_draft:
            self._keep_distributions(values, rows, start, masks)
        self._explain(values, rows, start, masks)
        self._report(values, rows, start, native=_on_host(logits))

    def draw(self, logits: Tensor, rows: SampleRows, run: RunCall = run_plainly) -> None:
        """Begin to sample the rows of a step, all of which are plain: their tokens come to lie on the device.

        A token is -1 where `not_finite` says what is wrong. See `sample`.
        """
        count = rows.count
        run(SAMPLE, count, lambda: self._race(logits, rows.part(0, count)))

    def runners_up(self, logits: Tensor, rows: SampleRows, start: int, count: int) -> list[Ids]:
        """The tokens that would have been drawn without the one that was, and without that one, and so on.

        logits, start: as `sample` was given them; rows whose logits are changed or masked are drawn as if they were not.
        Returns `count` arrays int64 [R]; -1 where no token is left.
        """
        left = logits.detach()[:, : self.vocab_size].clone()
        places = np.arange(len(left))
        drawn = rows.tokens[start : start + len(left)]
        found: list[Ids] = []
        for _ in range(count):
            known = (drawn >= 0).nonzero()[0]
            left[known, drawn[known]] = -torch.inf
            chosen = rows.chosen(start + places, places)
            self._race(left, chosen)
            drawn = chosen.out.numpy()
            found.append(drawn)
        return found

    def _redraw(self, logits: Tensor, rows: SampleRows, start: int, lazy: Sequence[int]) -> None:
        """Draw again, with their masks, the rows whose largest logit turns out to be of a token that may not come."""
        again = refused(rows, lazy)
        if not again:
            return
        masks = self._late_masks.ask(rows, again, start, start + logits.shape[0])
        if masks is None:
            return
        places = np.array(again) - start
        chosen = rows.chosen(np.array(again), places)
        self._race(logits, chosen, masks.of(places))
        tokens = chosen.out.numpy()
        rows.tokens[again] = tokens
        for place in (tokens < 0).nonzero()[0].tolist():
            rows.errors.setdefault(again[place], _nothing_left(-np.inf))

    def _draw_plain(
        self, logits: Tensor, rows: SampleRows, start: int, adjusted: Sequence[int], masks: RowMasks | None
    ) -> None:
        """The tokens of the rows that are not adjusted: all, some or none."""
        count = logits.shape[0]
        if not adjusted:
            assert masks is not None, "rows without anything special are drawn by the recorded call"
            self._race_masked(logits, rows, start, masks)
        elif len(adjusted) < count:
            self._draw_others(logits, rows, start, adjusted, masks)

    def _race_masked(self, logits: Tensor, rows: SampleRows, start: int, masks: RowMasks) -> None:
        """The tokens of neighbouring rows with masks: on the device where a kernel of its own takes masks."""
        count = logits.shape[0]
        stop = start + count
        every = masks.of(slice(0, count))
        if rows.on_device is None or self.masked is None:
            self._race(logits, rows.host_part(start, stop), every)
            return
        self._race(logits, rows.part(start, stop), every)
        rows.fetch(start, stop)

    def _draw_others(
        self, logits: Tensor, rows: SampleRows, start: int, adjusted: Sequence[int], masks: RowMasks | None
    ) -> None:
        """The tokens of the rows that are not adjusted, where some are."""
        every = np.arange(start, start + logits.shape[0])
        places = np.array(adjusted) - start
        plain = np.delete(every, places)
        chosen = rows.chosen(plain, plain - start)
        self._race(logits, chosen, None if masks is None else masks.of(plain - start))
        rows.tokens[plain] = chosen.out.numpy()

    def _draw_adjusted(
        self, values: Float32, rows: SampleRows, start: int, adjusted: Sequence[int], masks: RowMasks | None
    ) -> None:
        """The tokens of adjusted rows, from copies of their logits."""
        count = len(adjusted)
        if len(self._scratch) < count:
            self._scratch = np.empty((count, self.vocab_size), np.float32)
        logits = self._scratch[:count]
        for copy, row in zip(logits, adjusted, strict=True):
            copy[:] = values[row - start]
        finite = np.isfinite(_tops(logits))
        changes = []
        for row in adjusted:
            change = Adjusted(rows.state(row), rows.index(row), rows.drafted(row))
            changes.append(change)
        adjust(logits, changes)
        if masks is not None:
            _mask(logits, masks, [row - start for row in adjusted])
        chosen = rows.chosen(np.array(adjusted), np.arange(count))
        self._race(torch.from_numpy(logits), chosen)
        tokens = chosen.out.numpy()
        # the model's own bad logits win over what the stages made of them
        tokens[~finite] = NO_TOKEN
        rows.tokens[adjusted] = tokens
        ruled_out = (tokens < 0) & finite
        for place in ruled_out.nonzero()[0].tolist():
            row = adjusted[place]
            rows.errors.setdefault(row, _nothing_left(_top(logits[place])))

    def _judge(
        self, values: Float32, rows: SampleRows, start: int, judged: Sequence[int], masks: RowMasks | None
    ) -> None:
        """Let the rule decide on rows with a draft; its tokens take the place of those that were drawn."""
        assert self.rule is not None
        sound = [row for row in judged if rows.tokens[row] >= 0]
        positions = []
        for row in sound:
            logits = self._final_logits(values, rows, start, row, masks)
            positions.append(position_of(rows, row, logits))
        if sound:
            rows.tokens[sound] = self.rule.tokens(positions)

    def _keep_distributions(self, values: Float32, rows: SampleRows, start: int, masks: RowMasks | None) -> None:
        """Remember what the drafts of these rows are drawn from, as far as they are drawn at random."""
        count = len(values)
        end = start + count
        was_drawn = (rows.tokens[start:end] >= 0) & (rows.temperatures[start:end] > 0)
        for place in was_drawn.nonzero()[0].tolist():
            row = start + place
            logits = self._final_logits(values, rows, start, row, masks)
            keep_distribution(rows, row, logits)

    def _final_logits(self, values: Float32, rows: SampleRows, start: int, row: int, masks: RowMasks | None) -> Float32:
        """A row's logits as they compete, float32 [V]: behind its stages and its mask."""
        place = row - start
        logits = values[place : place + 1].copy()
        is_ending = masks is not None and row in masks.ending
        if row in rows.adjusted and not is_ending:
            adjust(logits, [Adjusted(rows.state(row), rows.index(row), rows.drafted(row))])
        if masks is not None:
            _mask(logits, masks, [place])
        final: Float32 = logits[0]
        return final

    def _explain(self, values: Float32, rows: SampleRows, start: int, masks: RowMasks | None) -> None:
        """Say what is wrong with the logits of rows without a token."""
        tokens = rows.tokens[start : start + len(values)]
        failed = (tokens < 0).nonzero()[0]
        for place in failed.tolist():
            row = start + place
            if row in rows.errors:
                continue
            largest = _top(values[place])
            is_masked = masks is not None and masks.words_of(place) is not None
            if is_masked and np.isfinite(largest):
                rows.errors[row] = _nothing_left(-np.inf)
            else:
                rows.errors[row] = _not_finite(largest)

    def _report(self, values: Float32, rows: SampleRows, start: int, *, native: bool) -> None:
        """The log-probabilities of the rows that want them and have a token."""
        asked = _between(rows.reported, start, start + len(values))
        served = [row for row in asked if row not in rows.errors]
        if not served:
            return
        slots = rows.slots[served]
        wanted = rows.columns.logprobs[slots].tolist()
        tokens = rows.tokens[served].tolist()
        places = [row - start for row in served]
        kernel = self.logprobs if native else None
        found = many_logprobs(kernel, values, places, tokens, wanted)
        rows.logprobs.update(zip(served, found, strict=True))

    def _race(self, logits: Tensor, rows: KernelRows, masks: tuple[Tensor, Tensor] | None = None) -> None:
        """The kernel's call, on logits without padding."""
        is_native = self._is_native(logits, rows)
        kernel = self.race if self.race is not None and is_native else numpy_race
        whole = logits.detach()[:, : self.vocab_size]
        arguments = (whole, rows.which, rows.keys, rows.temperatures, rows.out, rows.filters)
        if masks is None:
            kernel(*arguments)
        elif self.masked is not None and is_native:
            words, index = masks
            home = logits.device
            self.masked(*arguments, (words.to(home), index.to(home)))
        else:
            masked_race(kernel, *arguments, masks)

    def _is_native(self, logits: Tensor, rows: KernelRows) -> bool:
        """Whether logits and rows lie where the native kernels work."""
        if logits.device.type != self._home or logits.dtype is not torch.float32:
            return False
        return str(rows.out.device.type) == self._home


def _on_host(logits: Tensor) -> bool:
    return logits.device.type == "cpu" and logits.dtype is torch.float32


def _any_failed(tokens: Ids) -> bool:
    # argmin makes no array of comparisons, as (tokens < 0).any() would
    if not len(tokens):
        return False
    return bool(tokens[tokens.argmin()] < 0)


def _by_mask(rows: SampleRows, start: int, stop: int, adjusted: Sequence[int]) -> tuple[list[int], list[int]]:
    """Rows with a mask: those that can be drawn without it, to see whether it matters, and the others.

    The largest of all logits, when its token may come, is the largest of those that may. A race with noise or filters is
    another one when tokens are taken out of it.
    """
    lazy: list[int] = []
    eager: list[int] = []
    for row in _between(rows.masked, start, stop):
        is_lazy = rows.temperatures[row] == 0 and row not in adjusted
        where = lazy if is_lazy else eager
        where.append(row)
    return lazy, eager


def _mask(logits: Float32, masks: RowMasks, places: Sequence[int]) -> None:
    """Apply the masks of some rows. places: of each row of logits, counted from the masks' first."""
    for row, place in enumerate(places):
        words = masks.words_of(place)
        if words is not None:
            apply_bitmask(logits[row : row + 1], words[None])


def _between(rows: list[int], start: int, stop: int) -> list[int]:
    return [row for row in rows if start <= row < stop]


def _tops(logits: Float32) -> Float32:
    """The largest logit of each row, NaN where one is NaN."""
    best = logits.argmax(axis=1)
    rows = np.arange(len(best))
    tops: Float32 = logits[rows, best]
    return tops


def _top(row: Float32) -> float:
    """The largest logit of one row, NaN where one is NaN."""
    return float(row[row.argmax()])


def _nothing_left(largest: float) -> str:
    if largest == -np.inf:
        return (
            "No token can be sampled: allowed_token_ids, bad_words, min_tokens, structured outputs and penalties together "
            "rule out the whole vocabulary; relax one of them."
        )
    return f"The penalties make logits that are not finite (largest: {largest}); bring repetition_penalty nearer to 1."


def _not_finite(largest: float) -> str:
    return not_finite(f" (largest: {largest})")


def not_finite(seen: str = "") -> str:
    """What is wrong with a row that has no token although nothing was ruled out. seen: what its logits are."""
    return (
        f"The model's logits for this sequence are not finite{seen}; expected finite numbers. "
        "Try another dtype, or check the checkpoint."
    )
