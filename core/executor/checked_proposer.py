"""A proposer whose drafts are looked at before the model is given them.

Owns: that look, and the sentence that names the plugin. Never does: draft. Called by: the model runner, as its proposer.
"""

from __future__ import annotations

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError
from core.plugin.contracts import HasTree, NeedsHidden, Proposer, ProposerInput
from core.plugin.discovery import label
from core.sampling.draft_tree import DraftTree


class CheckedProposer:
    """Implements `core.plugin.contracts.Proposer` with another one.

    proposer: the plugin's own object.
    row: its entry point.
    vocab_size: the model's; a draft beyond it would be a row that no embedding has.
    needs_hidden: as the plugin's own object says.
    tree: the shape of its drafts; None: chains. Raises PluginError for a shape that is none.
    """

    def __init__(self, proposer: Proposer, row: ResolvedPlugin, vocab_size: int) -> None:
        self.needs_hidden = isinstance(proposer, NeedsHidden) and proposer.needs_hidden
        self.tree: DraftTree | None = None
        self._proposer = proposer
        self._row = row
        self._vocab_size = vocab_size
        if isinstance(proposer, HasTree):
            try:
                self.tree = DraftTree(tuple(proposer.tree))
            except ValueError as error:
                raise PluginError(f"{label(row)}: {error}", row) from error

    def on_start(self, key: tuple[str, int], token_ids: list[int]) -> None:
        """A sequence enters the batch."""
        self._proposer.on_start(key, token_ids)

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        """The plugin's drafts. Raises PluginError when one is no token of the model, or a sequence has no answer."""
        found = self._proposer.propose(batch)
        if len(found) != len(batch.keys):
            raise self._fault(f"{len(found)} lists of drafts for {len(batch.keys)} sequences")
        for drafts in found:
            if drafts and not 0 <= min(drafts) <= max(drafts) < self._vocab_size:
                wrong = next(token for token in drafts if not 0 <= token < self._vocab_size)
                raise self._fault(f"the draft {wrong}, expected tokens from 0 to {self._vocab_size - 1}")
        return found

    def on_finished(self, key: tuple[str, int]) -> None:
        """The sequence left the batch."""
        self._proposer.on_finished(key)

    def _fault(self, answered: str) -> PluginError:
        return PluginError(f"{label(self._row)}: propose answered {answered}.", self._row)
