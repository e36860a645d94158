"""The sampler: runs stages, kernel, error reports and logprobs; draws one token for each row of logits.

Owns: the order of these steps. Never does: keep a state between calls (the rows and their sequences do), or let one row's
result depend on another row. Called by: the model runner.

Rows without special parameters are drawn on the device of their logits, which also computes their logprobs. Everything else
happens on the host: changed logits, the decisions of a rule, and the error of a row that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from core.api.logprobs_mode import LogprobsMode, shows_processed
from core_runtime.contracts import LogprobsKernel
from core_runtime.sampling.changes.adjusted import AdjustedRows
from core_runtime.sampling.changes.host_logits import HostLogits
from core_runtime.sampling.changes.stages import CustomStage
from core_runtime.sampling.drafts.acceptance import AcceptanceRule
from core_runtime.sampling.drafts.judge import keep_distribution, position_of, rows_to_judge
from core_runtime.sampling.failures import explain_failures, nothing_left
from core_runtime.sampling.kernel import MaskedKernel, SamplingKernel, masked_race, numpy_race
from core_runtime.sampling.logprob_rows import MOST_LOGPROBS
from core_runtime.sampling.masks import MaskTable, RowMasks, refused
from core_runtime.sampling.noise import PURPOSE_DRAFT, PURPOSE_SAMPLE, Ids
from core_runtime.sampling.part import Part, between, by_mask
from core_runtime.sampling.reports import report
from core_runtime.sampling.rows import KernelRows, SampleRows
from core_runtime.sampling.supports import find_supports

RunCall = Callable[[str, int, Callable[[], None]], None]
"""Function that runs a call of a kind on a number of rows; it may record the call and replay it for any number of rows."""

SAMPLE: Final = "sample"
DRAWS: Final = ("draw", "draw filtered")
"""Kinds of calls that compute logits and draw tokens from them: without filters, and with them."""


def sampling_kind(start: int) -> str:
    """Return the kind of call that samples a step's rows from `start` on; each kind has its own places for tokens."""
    return f"{SAMPLE} from {start}" if start else SAMPLE


def run_plainly(kind: str, num_rows: int, call: Callable[[], None]) -> None:
    """Run a call without recording it."""
    call()


class Sampler:
    """Samples rows of logits over a vocabulary of `vocab_size` entries; logits beyond it are padding.

    race, logprobs: native kernels for float32 logits, which give the same tokens faster. None: numpy.
    masked: native kernel that takes token masks; None: rows with masks are copied.
    rule: rule of acceptance for drafts; None: drafts are kept that equal the sampled tokens.
    mode: form of the reported numbers.
    custom: logits processors of plugins; None: there are none.
    home: device type of `race`, `masked` and `logprobs`.
    tells_supports: whether the tokens that could have been drawn are found for each row.
    """

    def __init__(
        self,
        vocab_size: int,
        race: SamplingKernel | None = None,
        logprobs: LogprobsKernel | None = None,
        masked: MaskedKernel | None = None,
        rule: AcceptanceRule | None = None,
        mode: LogprobsMode = "raw_logprobs",
        custom: CustomStage | None = None,
        home: str = "cpu",
        *,
        tells_supports: bool = False,
    ) -> None:
        self.vocab_size = vocab_size
        self.tells_supports = tells_supports
        self._home = home
        self.race = race
        self.logprobs = logprobs
        self.masked = masked
        self.rule = rule
        self.mode: LogprobsMode = mode
        self._shows_processed = shows_processed(mode)
        self._masks = MaskTable(vocab_size)
        self._late_masks = MaskTable(vocab_size)
        self._adjusted = AdjustedRows(vocab_size, self._race, custom)

    @property
    def draft_purpose(self) -> int:
        """Purpose of the noise for drafts: the sampler's own, so that the same tokens are likely to be drawn again,
        unless the rule needs the drafts' own distributions.
        """
        draws_apart = self.rule is not None and self.rule.draws_apart
        return PURPOSE_DRAFT if draws_apart else PURPOSE_SAMPLE

    def sample(self, logits: Tensor, rows: SampleRows, start: int = 0, run: RunCall = run_plainly) -> None:
        """Sample the rows of a step from `start` on, one for each row of logits: tokens, errors and logprobs.

        logits: float32 [R, V], V ≥ vocab_size, not modified.
        run: runs the kernel's call on consecutive rows.
        A row with NaN or infinite logits, or with every token masked, fails alone, with an error message.
        """
        stop = self._end_of(logits, rows, start)
        part: Part | None = None
        if rows.adjusted or rows.masked:
            part = self._draw_special(logits, rows, start, stop, run)
        else:
            self._draw_alike(logits, rows, start, stop, run)
        judged = [] if self.rule is None else rows_to_judge(self.rule, rows, start, stop)
        is_draft = rows.purpose == PURPOSE_DRAFT
        is_adjusted = part is not None and bool(part.adjusted)
        is_told = is_adjusted or bool(rows.reported) or self.tells_supports
        if is_told or judged or is_draft or _any_failed(rows.tokens[start:stop]):
            part = part or Part(rows, start, stop)
            self._look(logits, part, judged)

    def _end_of(self, logits: Tensor, rows: SampleRows, start: int) -> int:
        """Return the end of the rows, exclusive. Raises ValueError for logits that do not belong to the rows."""
        shape = logits.shape
        stop: int = start + shape[0]
        if len(shape) != 2 or stop > rows.count or shape[1] < self.vocab_size:
            raise ValueError(
                f"logits have the shape {tuple(shape)}; expected (at most {rows.count - start}, at least {self.vocab_size})."
            )
        return stop

    def _draw_alike(self, logits: Tensor, rows: SampleRows, start: int, stop: int, run: RunCall) -> None:
        """Draw the tokens of rows without special parameters, by the call that may be recorded."""
        run(sampling_kind(start), stop - start, lambda: self._race(logits, rows.part(start, stop)))
        if rows.on_device is not None:
            rows.fetch(start, stop)

    def _draw_special(self, logits: Tensor, rows: SampleRows, start: int, stop: int, run: RunCall) -> Part:
        """Draw the tokens of all rows that are not adjusted, if some rows are special."""
        adjusted = between(rows.adjusted, start, stop)
        shown = set(rows.reported) if self._shows_processed else set()
        lazy, eager = by_mask(rows, start, stop, adjusted, shown)
        masks = self._masks.ask(rows, eager, start, stop) if eager else None
        if masks is not None:
            # A mask that ends the answer outranks `min_tokens` and the other stages, which could leave no token.
            adjusted = [row for row in adjusted if row not in masks.ending]
        part = Part(rows, start, stop, adjusted, lazy, masks)
        if adjusted:
            self._draw_others(logits, part)
        elif masks is not None:
            self._race_masked(logits, part, masks)
        else:
            self._draw_alike(logits, rows, start, stop, run)
        if lazy:
            self._redraw(logits, part)
        return part

    def _race_masked(self, logits: Tensor, part: Part, masks: RowMasks) -> None:
        """Draw the tokens of consecutive rows with masks: on the device if one of its kernels takes masks."""
        rows = part.rows
        if rows.on_device is None or self.masked is None or not rows.lies_on_device(part.stop):
            every = masks.of(slice(0, part.stop - part.start))
            self._race(logits, rows.host_part(part.start, part.stop), every)
            return
        sent = rows.on_device.masks.send(masks.words, masks.index)
        self._race(logits, rows.part(part.start, part.stop), sent)
        rows.fetch(part.start, part.stop)

    def _draw_others(self, logits: Tensor, part: Part) -> None:
        """Draw the tokens of the rows that are not adjusted, if some are."""
        rows = part.rows
        every = np.arange(part.start, part.stop)
        places = np.array(part.adjusted) - part.start
        plain = np.delete(every, places)
        if not len(plain):
            return
        chosen = rows.chosen(plain, plain - part.start)
        self._race(logits, chosen, None if part.masks is None else part.masks.of(plain - part.start))
        rows.tokens[plain] = chosen.out.numpy()

    def _redraw(self, logits: Tensor, part: Part) -> None:
        """Draw rows again with their masks if their largest logit belongs to a forbidden token."""
        rows = part.rows
        again = refused(rows, part.lazy)
        if not again:
            return
        # A table of its own: the masks of the other rows are still in use.
        masks = self._late_masks.ask(rows, again, part.start, part.stop)
        if masks is None:
            return
        places = np.array(again) - part.start
        chosen = rows.chosen(np.array(again), places)
        self._race(logits, chosen, masks.of(places))
        tokens = chosen.out.numpy()
        rows.tokens[again] = tokens
        for place in (tokens < 0).nonzero()[0].tolist():
            rows.errors.setdefault(again[place], nothing_left(-np.inf))

    def _look(self, logits: Tensor, part: Part, judged: Sequence[int]) -> None:
        """Do the work that needs logits on the host: adjusted rows, the rule, distributions of drafts, errors and reports."""
        rows = part.rows
        is_draft = rows.purpose == PURPOSE_DRAFT
        values = HostLogits(self._whole(logits))
        if part.adjusted:
            shows = self.tells_supports or (self._shows_processed and bool(rows.reported))
            self._adjusted.draw(part, values, keeps=bool(judged) or is_draft or shows)
        if judged:
            self._judge(values, part, judged)
        if is_draft:
            _keep_distributions(values, part)
        explain_failures(part, values)
        report(part, values, self.logprobs_of(logits), self.mode)
        if self.tells_supports and not is_draft:
            find_supports(part, values)

    def logprobs_of(self, logits: Tensor) -> LogprobsKernel | None:
        """Return the logprobs kernel for the device of these logits; None: numpy."""
        return self.logprobs if self._is_home(logits) else None

    def _judge(self, values: HostLogits, part: Part, judged: Sequence[int]) -> None:
        """Let the rule decide on rows with a draft; its tokens replace the drawn ones."""
        assert self.rule is not None
        rows = part.rows
        # A row that failed keeps its error.
        sound = [row for row in judged if rows.tokens[row] >= 0]
        values.bring([row - part.start for row in sound if row not in part.finals])
        positions = []
        for row in sound:
            final = part.final_logits(values, row)
            positions.append(position_of(rows, row, final))
        if sound:
            rows.tokens[sound] = self.rule.tokens(positions)

    def draws_alone(self, rows: SampleRows) -> bool:
        """Whether `draw` does everything that the rows of a step need, now and after they advance."""
        return rows.is_plain and not self.tells_supports and (not rows.reported or self._tells(rows))

    def _tells(self, rows: SampleRows) -> bool:
        """Whether the device can compute the requested logprobs."""
        if self.logprobs is None or self.mode != "raw_logprobs" or rows.lists:
            return False
        most = min(MOST_LOGPROBS, self.vocab_size)
        return all(0 <= count <= most for count in rows.wanted)

    def draw(self, logits: Tensor, rows: SampleRows, *, filtered: bool) -> None:
        """Begin to draw a token for each row of logits, for rows of which `draws_alone` holds; later ones are padding.

        The tokens are written on the device; a token is -1 for an error as in `not_finite`. See `sample`.
        filtered: whether some rows have a filter. It is all of the rows that this depends on, apart from their columns on the
            device: the call may be recorded.
        """
        own = rows.part(0, logits.shape[0])
        self._race(logits, own if filtered else own._replace(filters=None))

    def drawn(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """Return the int64 words that the host needs of rows that were drawn: the tokens, then the logprobs after all
        places of tokens.
        """
        device = rows.on_device
        assert device is not None, "the device draws no tokens"
        if not rows.reported:
            return device.out[: rows.count]
        assert self.logprobs is not None, "the device tells no log-probabilities"
        told = rows.told()
        which = device.told_rows.tensor[: len(told.rows)]
        counts = device.told_counts.tensor[: len(told.rows)]
        # a failed row has no token, and its logprobs are ignored, but the kernel needs a valid token id
        chosen = device.out.index_select(0, which).clamp_(min=0)
        self.logprobs(self._whole(logits), which, chosen, counts, *told.arrays(device.logprobs_memory(told)))
        return device.given(told)

    def runners_up(self, logits: Tensor, rows: SampleRows, start: int, count: int) -> list[Ids]:
        """Return the tokens that would have been drawn without the drawn one, then without that one too, and so on.

        logits, start: as passed to `sample`; rows whose logits are changed or masked are drawn as if they were not.
        Returns `count` arrays int64 [R]; -1 if no token is left.
        """
        left = self._whole(logits).clone()
        places = np.arange(len(left))
        drawn = rows.tokens[start : start + len(left)]
        found: list[Ids] = []
        for _ in range(count):
            known = (drawn >= 0).nonzero()[0]
            # The noise of the remaining tokens is the same, so the next winner is the runner-up.
            left[known, drawn[known]] = -torch.inf
            chosen = rows.chosen(start + places, places)
            self._race(left, chosen)
            drawn = chosen.out.numpy()
            found.append(drawn)
        return found

    def _race(self, logits: Tensor, rows: KernelRows, masks: tuple[Tensor, Tensor] | None = None) -> None:
        """Call the kernel on logits without padding. For logits on a device, the few numbers of each row are copied there."""
        whole = self._whole(logits)
        is_home = self._is_home(logits)
        takes_masks = masks is None or self.masked is not None
        if self.race is None or not (is_home and takes_masks):
            # A CPU kernel without masks can still draw from masked copies.
            works_here = is_home and self._home == "cpu"
            kernel = self.race if self.race is not None and works_here else numpy_race
            _race_on_host(kernel, whole, rows, masks)
            return
        own = rows if rows.out.device == logits.device else rows.on(logits.device)
        if masks is None:
            self.race(whole, *own)
        elif self.masked is not None:
            words, index = masks
            self.masked(whole, *own, (words.to(logits.device), index.to(logits.device)))
        if own is not rows:
            # The kernel wrote its tokens to the device's copy of the rows.
            rows.out.copy_(own.out)

    def _is_home(self, logits: Tensor) -> bool:
        return logits.device.type == self._home and logits.dtype is torch.float32

    def _whole(self, logits: Tensor) -> Tensor:
        """Return logits without padding."""
        return logits.detach()[:, : self.vocab_size]


def _race_on_host(
    kernel: SamplingKernel, logits: Tensor, rows: KernelRows, masks: tuple[Tensor, Tensor] | None
) -> None:
    """Call a kernel that takes no masks, for rows on the host."""
    if masks is None:
        kernel(logits, *rows)
    else:
        masked_race(kernel, logits, *rows, masks)


def _any_failed(tokens: Ids) -> bool:
    # argmin makes no array of comparisons, as (tokens < 0).any() would
    if not len(tokens):
        return False
    return bool(tokens[tokens.argmin()] < 0)


def _keep_distributions(values: HostLogits, part: Part) -> None:
    """Store the distributions of drafts in these rows that are drawn at random."""
    rows = part.rows
    span = slice(part.start, part.stop)
    was_drawn = (rows.tokens[span] >= 0) & (rows.temperatures[span] > 0)
    drawn = was_drawn.nonzero()[0].tolist()
    values.bring(drawn)
    for place in drawn:
        row = part.start + place
        keep_distribution(rows, row, part.final_logits(values, row))
