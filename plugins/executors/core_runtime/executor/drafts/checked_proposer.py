"""A guard around a proposer that the engine can do without: the plugin's first failure ends its use.

Owns: the check of its drafts, its time limit, and the sentence that says why it is off. Never does: draft.
Called by: the model runner, as its proposer.

Drafts are guesses, so a failing plugin costs time and nothing else. The plugin is called in a thread of its own, where it may
hang. A plugin that reads hidden states computes on the model's device and stays in the thread of the steps.
"""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable
from typing import Any, Final

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError
from core.plugin.discovery import label
from core_runtime.contracts import HasTree, KnowsRequests, NeedsHidden, Proposer, ProposerInput, RequestFacts
from core_runtime.executor.background_calls import BackgroundCalls
from core_runtime.sampling.drafts.draft_tree import DraftTree

logger = logging.getLogger(__name__)

LIMIT_S: Final = 5.0
"""Seconds after which a call is considered hung."""
SLOW_S: Final = 0.005
"""Seconds of drafting per step that are never counted as slow."""
SLOW_STEPS: Final = 16
"""Consecutive steps in which drafting may take longer than the rest of the step; then the plugin is switched off."""

Key = tuple[str, int]


class CheckedProposer:
    """A proposer that wraps the plugin's own one; implements `core_runtime.contracts.Proposer` and `KnowsRequests`.

    needs_hidden: as the plugin's own object says.
    off: why the plugin is switched off; empty while it is in use.
    proposer: the plugin's own object.
    row: the plugin's entry point.
    vocab_size: size of the model's vocabulary; a draft beyond it would have no row in the embedding.
    tree: shape of the plugin's drafts; None: chains. Raises PluginError for an invalid shape.
    blamed: turn an error into one that names the plugin whose code raised it.
    clock: return the time in seconds.
    """

    def __init__(
        self,
        proposer: Proposer,
        row: ResolvedPlugin,
        vocab_size: int,
        blamed: Callable[[Exception], Exception] = lambda error: error,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.needs_hidden = isinstance(proposer, NeedsHidden) and proposer.needs_hidden
        self.off = ""
        self._proposer: Proposer | None = proposer
        self._row = row
        self._vocab_size = vocab_size
        self._blamed = blamed
        self._clock = clock
        self._beside = None if self.needs_hidden else BackgroundCalls(f"proposer {row.name}")
        self._answered_at = clock()
        self._num_slow = 0
        self.tree: DraftTree | None = None
        if isinstance(proposer, HasTree):
            try:
                self.tree = DraftTree(tuple(proposer.tree))
            except ValueError as error:
                raise PluginError(f"{label(row)}: {error}", row) from error

    def on_request(self, key: Key, facts: RequestFacts) -> None:
        """Pass on the facts of a sequence that is about to start."""
        if isinstance(self._proposer, KnowsRequests):
            self._call(self._proposer.on_request, key, facts)

    def on_start(self, key: Key, token_ids: list[int]) -> None:
        """Pass on that a sequence enters the batch."""
        if self._proposer is not None:
            self._call(self._proposer.on_start, key, token_ids)

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        """Return the plugin's drafts; empty lists once it is off."""
        proposer = self._proposer
        if proposer is None:
            return [[] for _ in batch.keys]
        begin = self._clock()
        rest_s = begin - self._answered_at
        drafts = self._call(lambda: self._checked(proposer.propose(batch), batch))
        self._answered_at = self._clock()
        # The time between two calls is the rest of the step: the model's pass, sampling and the engine's work.
        self._watch(self._answered_at - begin, rest_s)
        return drafts or [[] for _ in batch.keys]

    def on_finished(self, key: Key) -> None:
        """Pass on that a sequence left the batch."""
        if self._proposer is not None:
            self._call(self._proposer.on_finished, key)

    def close(self) -> None:
        """Drop the plugin's object and end its thread."""
        self._proposer = None
        if self._beside is not None:
            self._beside.close()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the plugin and return its answer; None if it failed, which switches it off."""
        try:
            if self._beside is None:
                return function(*arguments)
            return self._beside.call(function, *arguments, limit_s=LIMIT_S)
        except TimeoutError as error:
            self._switch_off(PluginError(f"{label(self._row)}: {error}.", self._row))
        except Exception as error:
            self._switch_off(self._named(error))
        # A plugin that calls `sys.exit` would otherwise end the engine.
        except SystemExit as error:
            self._switch_off(PluginError(f"{label(self._row)}: it called sys.exit({error}).", self._row))
        return None

    def _checked(self, found: list[list[int]], batch: ProposerInput) -> list[list[int]]:
        """Return the drafts as plain integers. Raises PluginError for invalid ones."""
        try:
            # `operator.index` accepts numpy's integers, and refuses floats and strings.
            drafts = [[operator.index(token) for token in tokens] for tokens in found]
        except TypeError as error:
            raise self._fault(f"{found!r:.80}, expected a list of token ids for each sequence") from error
        if len(drafts) != len(batch.keys):
            raise self._fault(f"{len(drafts)} lists of drafts for {len(batch.keys)} sequences")
        last = self._vocab_size - 1
        for tokens, limit in zip(drafts, batch.budget, strict=True):
            if len(tokens) > limit:
                raise self._fault(f"{len(tokens)} drafts, expected at most {limit}")
            if tokens and not 0 <= min(tokens) <= max(tokens) <= last:
                wrong = next(token for token in tokens if not 0 <= token <= last)
                raise self._fault(f"the draft {wrong}, expected tokens from 0 to {last}")
        return drafts

    def _fault(self, answered: str) -> PluginError:
        return PluginError(f"{label(self._row)}: propose answered {answered}.", self._row)

    def _named(self, error: Exception) -> Exception:
        """Return the error with the plugin's name and the place in its code that raised it."""
        blamed = self._blamed(error)
        if isinstance(blamed, PluginError) and blamed.plugin is not None:
            return blamed
        named = PluginError(f"{label(self._row)}: {type(error).__name__}: {error}.", self._row)
        named.__cause__ = error
        return named

    def _watch(self, spent_s: float, rest_s: float) -> None:
        """Count consecutive steps that spent more time on drafting than on everything else; switch off after
        `SLOW_STEPS`.
        """
        if spent_s < max(SLOW_S, rest_s):
            self._num_slow = 0
            return
        self._num_slow += 1
        if self._num_slow == SLOW_STEPS and not self.off:
            times = f"{spent_s * 1e3:.0f} ms for drafts, {rest_s * 1e3:.0f} ms for the rest of the step"
            sentence = f"{label(self._row)}: it was slower than the model in {SLOW_STEPS} steps on end ({times})."
            self._switch_off(PluginError(sentence, self._row))

    def _switch_off(self, error: Exception) -> None:
        self.close()
        self.off = f"{error} It drafts no more until the engine starts anew."
        logger.error("%s", self.off, exc_info=error.__cause__)
