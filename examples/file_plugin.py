"""A plugin in a single file: a proposer that drafts the last token again. Use it without installing anything:

    core serve --plugins ./examples/file_plugin.py \\
        --speculative-config '{"method": "again", "num_speculative_tokens": 2}'

It is a poor proposer, and the output is the same as without it: drafts are verified by sampling.
"""

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.contracts import ProposerInput

CONTRACT = 1
KIND = "speculative"


class Again:
    """Implements `core_runtime.contracts.Proposer`."""

    def on_start(self, key: tuple[str, int], token_ids: list[int]) -> None:
        """Nothing to remember."""

    def propose(self, batch: ProposerInput) -> list[list[int]]:
        """The newest token, as often as there is budget."""
        return [[delta[-1]] * budget for delta, budget in zip(batch.token_deltas, batch.budget, strict=True)]

    def on_finished(self, key: tuple[str, int]) -> None:
        """Nothing to forget."""


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="again", summary="drafts the last token again")


@hookimpl
def core_load(context: LoadContext) -> Again:
    """Build the proposer."""
    return Again()
