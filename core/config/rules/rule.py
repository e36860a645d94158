"""What a rule is: a numbered check that looks at facts and answers with findings.

Owns: `Rule`, `Facts` (what rules may look at), the findings, and running one stage. Never does: hold a rule itself.
Called by: the rule files (they build rows of the table), resolve (it runs the stages).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

from core.api.checkpoint import CheckpointManifest
from core.api.decoder_spec import DecoderSpec
from core.api.specs import StateSpec
from core.config.settings import Settings
from core.plugin.hookspecs import Device, PluginSpec

Kind = Literal["error", "warning", "derived", "replaced"]
Stage = Literal["arguments", "reference", "platform", "model", "memory", "plugins"]


@dataclass(frozen=True, slots=True)
class Problem:
    """The configuration is refused. text: flags, the values seen, a way out."""

    text: str


@dataclass(frozen=True, slots=True)
class Warn:
    """The configuration is taken, but something in it is not what it seems."""

    text: str


@dataclass(frozen=True, slots=True)
class Derive:
    """A value for an argument, or for a key in one (`speculative_config.KEY`), that the user left open.

    force: replace the user's value as well (a `Warn` says so, unless the value asked for this, such as `auto`).
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
    """What is known when a stage runs; later stages know more.

    settings: the arguments as they stand. config: of the model's directory, before a loader was asked; draft: the same of
    a draft model. snapshot: local path of a hub name. device, num_devices, platform: chosen. platforms, loaders: names of
    all plugins of that kind. loader, quantization, kernels: chosen. files: names in the checkpoint. magic: its first
    bytes. spec, manifest: of the model. weights_bytes, block_bytes: of the memory plan. host_memory: of this machine.
    """

    settings: Settings
    context: str = "serve"
    environ: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    draft: Mapping[str, Any] = field(default_factory=dict)
    snapshot: str | None = None
    device: Device | None = None
    num_devices: int = 0
    platform: PluginSpec | None = None
    platforms: Sequence[str] = ()
    loader: PluginSpec | None = None
    loaders: Sequence[str] = ()
    quantization: str | None = None
    kernels: Sequence[str] = ()
    files: Sequence[str] = ()
    magic: bytes = b""
    spec: DecoderSpec | None = None
    manifest: CheckpointManifest | None = None
    weights_bytes: int = 0
    block_bytes: int = 0
    host_memory: int = 0

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    def get(self, name: str) -> Any:
        """The value of an argument that may no longer be declared, None when it is not."""
        row = self.settings.rows.get(name)
        return None if row is None else row[0]

    def given(self, name: str) -> bool:
        """Whether the user gave `name`."""
        return name in self.settings.rows and self.settings.user_set(name)

    def capability(self, name: str) -> Any:
        """What the chosen platform declares, None when it says nothing."""
        return None if self.platform is None else self.platform.capabilities.get(name)

    @property
    def world(self) -> int:
        """Ranks of one replica."""
        context = self.get("prefill_context_parallel_size") or 1
        return int(self["tensor_parallel_size"] * self["pipeline_parallel_size"] * context)

    @property
    def speculative(self) -> dict[str, Any]:
        """`speculative_config` with underscores in its keys; empty when unset."""
        return {str(key).replace("-", "_"): value for key, value in (self["speculative_config"] or {}).items()}

    @property
    def has_states(self) -> bool:
        """Whether the model has layers with a state; False before it is known."""
        return self.spec is not None and any(isinstance(block.mixer, StateSpec) for block in self.spec.blocks)

    @property
    def num_drafts(self) -> int:
        """Drafts a step; 0 without speculation, and when the value is no positive integer (R6 says so)."""
        count = self.speculative.get("num_speculative_tokens")
        return count if is_count(count) else 0


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. A number with several effects has a row for each.

    names: arguments that must be declared for the rule to run; also what it is about. check: answers with findings.
    instead: for kind `replaced`: what holds in place of the rule. For other kinds without a check: who does it.
    """

    number: str
    names: tuple[str, ...]
    kind: Kind
    check: Callable[[Facts], Findings] | None = None
    stage: Stage = "arguments"
    instead: str = ""


def findings(rules: Sequence[Rule], stage: Stage, facts: Facts) -> Iterator[Finding]:
    """What the rules of one stage find, in order; each derived value is applied before the next rule looks."""
    for rule in rules:
        if rule.stage != stage or rule.check is None or any(name not in facts.settings.rows for name in rule.names):
            continue
        for finding in list(rule.check(facts)):
            if isinstance(finding, Derive):
                apply(facts.settings, finding)
            yield finding


def apply(settings: Settings, finding: Derive) -> None:
    """Settle a derived value, unless the user has."""
    name, value, reason = finding.name, finding.value, finding.reason
    if finding.canonical or "." in name:
        settings.derive(name, value, reason)
    elif finding.force:
        settings.replace(name, value, reason)
    elif not settings.user_set(name):
        settings.derive(name, value, reason)


def flag(name: str) -> str:
    """`--max-num-seqs`."""
    return "--" + name.replace("_", "-")


def is_count(value: Any, least: int = 1) -> TypeGuard[int]:
    """Whether `value` is an integer from `least` on (True and 1.0 are not)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any) -> TypeGuard[float]:
    """Whether `value` is a number (True is not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
