"""The form of a rule: a check that reads facts and yields findings.

Owns: `Rule`, `Facts` (the input of rules), the findings, and running one stage. Never does: hold a rule itself.
Called by: the rule files (they build rows of the table), resolve (it runs the stages).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

from core.api.pooling import PoolingConfig
from core.api.specs import StateSpec
from core.plugin.hookspecs import Device, PluginSpec
from core_config.stages.settings import Settings
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.module_spec import ModelSpec

Stage = Literal["arguments", "reference", "platform", "model", "memory", "plugins"]


@dataclass(frozen=True, slots=True)
class Problem:
    """The configuration is refused. text: flags, their values, a way out."""

    text: str


@dataclass(frozen=True, slots=True)
class Warn:
    """The configuration is accepted, but a part of it has no effect or may surprise. text: flags and the effect."""

    text: str


@dataclass(frozen=True, slots=True)
class Derive:
    """A value for an argument, or for a key in one (`speculative_config.KEY`), that the user left open.

    force: replace the user's value as well (a `Warn` says so, unless the value itself means this, such as `auto`).
    canonical: only another spelling of the user's value; its origin stays.
    """

    name: str
    value: Any
    reason: str
    force: bool = False
    canonical: bool = False


Finding = Problem | Warn | Derive
Findings = Iterable[Finding]


@dataclass(slots=True)
class Facts:
    """Everything that is known when a stage runs. Later stages know more.

    settings: the arguments with the values derived so far.
    context: `serve`, `llm` or `explain`.
    environ: environment variables.
    config: `config.json` of the model's directory, as it is before a loader reads it.
    draft: `config.json` of a draft model's directory.
    snapshot: local path of a hub name.
    device: the chosen device.
    platform: the chosen platform.
    loader: the chosen loader.
    loaders: names of all loaders.
    quantization: the chosen method.
    cascades: names of the chosen attention backends that read a shared prefix once.
    kernels: the chosen providers.
    magic: first bytes of the checkpoint.
    spec: the model's shape.
    manifest: manifest of the checkpoint.
    pooling: how hidden states become the answer; None: the model generates text.
    weights_bytes: bytes of the weights on the device, by the memory plan.
    offloaded_bytes: bytes of the weights in host memory, by the memory plan.
    workspace_bytes: bytes of a step's buffers, by the memory plan.
    adapters_bytes: bytes of adapters, by the memory plan.
    tower_bytes: bytes of the tower or encoder in the host's memory, by the memory plan.
    block_bytes: bytes of one KV block, by the memory plan.
    host_memory: bytes of memory of this machine.
    warnings: sentences of the stage that resolves the checkpoint.
    """

    settings: Settings
    context: str = "serve"
    environ: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    draft: Mapping[str, Any] = field(default_factory=dict)
    snapshot: str | None = None
    device: Device | None = None
    platform: PluginSpec | None = None
    loader: PluginSpec | None = None
    loaders: Sequence[str] = ()
    quantization: str | None = None
    cascades: Sequence[str] = ()
    kernels: Sequence[str] = ()
    magic: bytes = b""
    spec: ModelSpec | None = None
    manifest: CheckpointManifest | None = None
    pooling: PoolingConfig | None = None
    weights_bytes: int = 0
    offloaded_bytes: int = 0
    workspace_bytes: int = 0
    adapters_bytes: int = 0
    tower_bytes: int = 0
    block_bytes: int = 0
    host_memory: int = 0
    warnings: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    def given(self, name: str) -> bool:
        """Whether the user gave `name`, on the command line or in another source."""
        return self.settings.user_set(name)

    def origin(self, name: str) -> str:
        """Return the origin of the value of `name`: `argument`, `default`, ..."""
        _, origin, _ = self.settings.rows[name]
        return origin

    def capability(self, name: str) -> Any:
        """Return the value that the chosen platform declares for a capability; None when it declares none."""
        return None if self.platform is None else self.platform.capabilities.get(name)

    @property
    def speculative(self) -> dict[str, Any]:
        """Return `speculative_config` with underscores in its keys and derived values; empty when unset."""
        return self.settings.mapping("speculative_config")

    @property
    def is_headless(self) -> bool:
        """Whether this command is an engine server or a node, whose API server runs elsewhere.

        A rank that a launcher has started is none: all ranks have the same arguments.
        """
        is_node = self["node_rank"] and self["distributed_executor_backend"] != "external_launcher"
        return bool(self["headless"] or is_node)

    @property
    def is_api_server(self) -> bool:
        """Whether this command is an API server, whose engine runs elsewhere."""
        return bool(self["data_parallel_size_local"] == 0)

    @property
    def has_states(self) -> bool:
        """Whether the model has layers with a state; False before it is known."""
        mixers = self.spec.mixers if self.spec is not None else ()
        return any(isinstance(mixer, StateSpec) for mixer in mixers)

    @property
    def num_drafts(self) -> int:
        """Return the drafts a step; 0 without speculation, and for values that `method_and_count_are_given` reports."""
        count = self.speculative.get("num_speculative_tokens")
        return count if is_count(count) else 0


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table: a check, and the stage in which it runs."""

    check: Callable[[Facts], Findings]
    stage: Stage = "arguments"


def findings(rules: Sequence[Rule], stage: Stage, facts: Facts) -> Iterator[Finding]:
    """Yield the findings of one stage, in order. Each derived value is applied before the next rule runs."""
    for rule in rules:
        if rule.stage != stage:
            continue
        # the rule runs to its end first, so that none of its findings depends on a value that another one derives
        for finding in list(rule.check(facts)):
            if isinstance(finding, Derive):
                apply(facts.settings, finding)
            yield finding


def apply(settings: Settings, finding: Derive) -> None:
    """Apply a derived value, unless the user has set one."""
    name, value, reason = finding.name, finding.value, finding.reason
    if finding.canonical or "." in name:
        settings.derive(name, value, reason)
    elif finding.force:
        settings.replace(name, value, reason)
    elif not settings.user_set(name):
        settings.derive(name, value, reason)


def is_count(value: Any, least: int = 1) -> TypeGuard[int]:
    """Whether `value` is an integer of at least `least` (True and 1.0 are not)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any) -> TypeGuard[float]:
    """Whether `value` is a number (True is not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
