"""One attempt at a configuration: the state that its stages share, and the collection of all problems.

Owns: `Attempt`. Never does: know a stage or their order (`core_config.resolve` does). Called by: resolve and the stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from core.api.errors import ConfigError, CoreError, PluginError
from core.plugin.registry import PluginRegistry
from core_config.rules import RULES, Facts, Problem, Stage, Warn, findings
from core_config.speculation.model import Draft
from core_config.stages.chosen import Chosen
from core_config.stages.settings import Settings

T = TypeVar("T")


@dataclass(slots=True)
class Attempt:
    """The state that stages read and write.

    facts: facts known so far, the settings among them.
    problems: sentences; the attempt fails when there is one at its end.
    warnings: sentences.
    failures: errors of plugins, each a problem as well.
    registry: None until the arguments that restrict it are known.
    chosen: plugins, by stage.
    draft: the draft that the core runs for the proposer, or None.
    """

    facts: Facts
    problems: list[str]
    warnings: list[str]
    registry: PluginRegistry | None = None
    failures: list[PluginError] = field(default_factory=list)
    chosen: Chosen = field(default_factory=Chosen)
    draft: Draft | None = None

    @property
    def settings(self) -> Settings:
        """Return the arguments with the values derived so far."""
        return self.facts.settings

    @property
    def plugins(self) -> PluginRegistry:
        """Return the registry. Fails before the discovery of plugins."""
        assert self.registry is not None
        return self.registry

    def run_rules(self, stage: Stage) -> None:
        """Run the rules of one stage. Their findings become problems and warnings, each once."""
        for finding in findings(RULES, stage, self.facts):
            if isinstance(finding, Problem) and finding.text not in self.problems:
                self.problems.append(finding.text)
            elif isinstance(finding, Warn) and finding.text not in self.warnings:
                self.warnings.append(finding.text)

    def answer_of(self, stage: Callable[[], T]) -> T | None:
        """Run a stage and return its answer. Its errors, and exceptions of plugins in it, become problems, and the
        answer is None.
        """
        try:
            return stage()
        except ConfigError as error:
            self.problems += [problem for problem in error.problems if problem not in self.problems]
        except Exception as error:
            named = error if self.registry is None else self.registry.blamed(error)
            if not isinstance(named, CoreError):
                raise
            if isinstance(named, PluginError):
                self.failures.append(named)
            self.problems.append(str(named))
        return None
