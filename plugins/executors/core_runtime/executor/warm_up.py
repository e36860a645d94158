"""The warm-up of kernels that are compiled, while an engine starts.

Owns: what the providers of kernels are told of the engine's steps. Never does: compile (providers do, in other processes).
Called by: the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from core.api.config import EngineConfig
from core_runtime.contracts import Kernels, Runtime, WarmsUp, WarmUp
from core_runtime.layers.kernels import KernelSet

RUN: Final = f"{__name__}:run_steps"
"""Name of the function that runs the steps, for another process."""


class WarmUps:
    """The warm-ups of one engine's providers, begun when it is made; a provider that compiles nothing has none."""

    def __init__(self, config: EngineConfig, runtime: Runtime) -> None:
        providers = compiling(runtime.kernels)
        self._begun: list[WarmUp] = []
        if not providers:
            return
        words = msgspec.json.encode(config, order="deterministic").decode()
        try:
            for provider in providers:
                begun = provider.warm_up(RUN, words)
                if begun is not None:
                    self._begun.append(begun)
        except BaseException:
            self.stop()
            raise

    def finish(self) -> None:
        """Wait until every kernel is compiled and loaded. Raises UserError for one that cannot be."""
        for begun in self._begun:
            begun.finish()

    def stop(self) -> None:
        """End what is not finished."""
        for begun in self._begun:
            begun.stop()


def compiling(kernels: Kernels) -> Sequence[WarmsUp]:
    """Return the providers whose kernels are compiled."""
    providers = kernels.providers if isinstance(kernels, KernelSet) else ()
    return [provider for provider in providers if isinstance(provider, WarmsUp)]


def run_steps(config: str, _chip: str) -> None:
    """Run every kind of step of a configured model without its device. config: see `WarmsUp`."""
    from core_runtime.executor.dry_run import dry_run

    dry_run(msgspec.json.decode(config, type=EngineConfig), reads=False)
