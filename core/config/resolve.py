"""From arguments to everything that an engine and a server are built from.

Owns: the order of stages, the collection of all problems. Never does: import torch, read a weight, start anything.
Called by: `core serve`, `core config`, `core plugins explain`, `LLM`.

A stage that fails adds its sentences; stages that need its answer are left out, all others still run, so that one
attempt reports as much as can be known.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from core.api.checkpoint import CheckpointManifest
from core.api.config import EngineConfig, ResolvedPlugin, ServerConfig
from core.api.errors import ConfigError, CoreError, PluginError
from core.api.specs import MixerSpec
from core.args.sources import Merged, merge
from core.config import choices, limits
from core.config.checkpoint import Checkpoint, find_checkpoint
from core.config.choices import Chosen
from core.config.engine import engine_config, scheduler_config
from core.config.family import find_family
from core.config.files import host_memory, look, own_config
from core.config.isolation import left_out, way_out
from core.config.memory import MemoryPlan, kv_groups, workspace_bytes
from core.config.numerics import numerics_id
from core.config.rules import RULES, Facts, Problem, Stage, Warn, findings
from core.config.server import server_config
from core.config.settings import PREFERENCES, Row, Settings
from core.config.waivers import waivers
from core.config.weights import planned_weights, proposer_weights
from core.models.logit_rows import logit_rows
from core.models.spec import DecoderSpec
from core.plugin.capabilities import dtype_reasons
from core.plugin.hookspecs import Device, PlatformView, Probe
from core.plugin.ranking import Selection
from core.plugin.registry import PluginRegistry
from core.plugin.selection import (
    select_kernels,
    select_platform,
    select_policy,
    select_quantization,
    select_speculative,
)

logger = logging.getLogger(__name__)

Context = Literal["serve", "llm", "explain"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resolution:
    """The outcome.

    arguments: {name: (value, origin, reason)}. given: what the user gave, as it was given. memory: bytes, by shapes alone.
    numerics: what results depend on, as the running engine reports it; None when a plugin tells only after loading.
    waivers: what makes a request's tokens depend on its neighbours, a sentence each (see `core.config.waivers`).
    replaceable: chosen plugins that nobody named and that others can replace; again: resolves the same without one of them.
    """

    engine: EngineConfig
    server: ServerConfig
    manifest: CheckpointManifest
    selections: list[Selection]
    arguments: dict[str, Row]
    warnings: list[str]
    memory: MemoryPlan
    waivers: list[str]
    given: dict[str, Any]
    numerics: str | None
    replaceable: set[ResolvedPlugin]
    again: Callable[[PluginError], Resolution]

    def without(self, error: PluginError) -> Resolution:
        """The same arguments, resolved again without the plugin that failed with `error`; a warning is logged.

        Raises PluginError, with the ways out, when that plugin was named, when nothing else can do its work, or when it is
        no plugin's failure.
        """
        if error.plugin is None:
            raise error
        if error.plugin in self.replaceable:
            with contextlib.suppress(CoreError):
                found = self.again(error)
                logger.warning("%s", found.warnings[0])
                return found
        raise PluginError(f"{error} {way_out(error.plugin)}", error.plugin) from error


def resolve(
    arguments: Mapping[str, Any],
    *,
    context: Context,
    registry: PluginRegistry | None = None,
    environ: Mapping[str, str] | None = None,
    problems: Sequence[str] = (),
) -> Resolution:
    """Resolve arguments, by schema name: plain values, or `Given` with an origin.

    registry: discovered (and restricted by `plugins`) when None. environ: `os.environ` when None.
    problems: what the command line already found wrong; reported together with the rest.
    Raises ConfigError with every problem.
    """
    environment = os.environ if environ is None else environ
    merged = merge(arguments, environment)
    known = [*problems, *(p for p in merged.problems if p not in problems)]
    return _resolve(_Resolver(merged, Facts(Settings(merged), context, environment), known), registry)


def _resolve(resolver: _Resolver, registry: PluginRegistry | None) -> Resolution:
    """Run it; when a plugin fails that nobody named and that others can replace, once more without it."""
    resolver.registry = registry
    found = list(resolver.problems)

    def again(error: PluginError) -> Resolution:
        assert resolver.registry is not None and error.plugin is not None
        resolver.registry.block(error.plugin, str(error).rstrip("."))
        facts = Facts(Settings(resolver.merged), resolver.facts.context, resolver.facts.environ)
        warnings = [left_out(error), *resolver.left_out]
        return _resolve(_Resolver(resolver.merged, facts, list(found), left_out=warnings), resolver.registry)

    resolver.server = server_config(resolver.merged, resolver.problems)
    try:
        return resolver.run(again)
    except ConfigError:
        replaceable = resolver.chosen.replaceable()
        failed = next((error for error in resolver.failures if error.plugin in replaceable), None)
        if failed is None:
            raise
    return again(failed)


@dataclass(slots=True)
class _Resolver:
    """State of one resolution. asked: the arguments as the user gave them, when some of them are not served.

    registry: made by `run` when None. left_out: a warning for each plugin that failed before. failures: of plugins, now.
    """

    merged: Merged
    facts: Facts
    problems: list[str]
    left_out: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    failures: list[PluginError] = field(default_factory=list)
    registry: PluginRegistry | None = None
    chosen: Chosen = field(default_factory=Chosen)
    server: ServerConfig = field(default_factory=ServerConfig)
    asked: Settings | None = None

    @property
    def settings(self) -> Settings:
        """The arguments as they stand."""
        return self.facts.settings

    def run(self, again: Callable[[PluginError], Resolution]) -> Resolution:
        """All stages in order. again: for the resolution, see there."""
        self.warnings += [*self.left_out, *self.merged.warnings]
        if self.merged.refused:
            self.asked = Settings(self.merged, asked=True)
        self.rules("arguments")
        if self.registry is None:
            self.registry = self.attempt(lambda: PluginRegistry(words=self.settings["plugins"]))
        plugins = self.registry
        if plugins is None:
            raise ConfigError(self.problems)
        if self.settings["device"].lower() == "auto":
            plugins.start_probes()  # they answer while the checkpoint is looked at
        located = self.attempt(lambda: self.checkpoint(plugins))
        found = self.attempt(lambda: find_family(plugins, located)) if located else None
        checkpoint, spec, family = found or (located, None, None)
        opened = self.attempt(lambda: self.platform(plugins, checkpoint))
        if checkpoint is None or spec is None or opened is None:
            self.speculative(plugins, checkpoint)
            raise ConfigError(self.problems)
        self.facts.spec, self.facts.manifest = spec, checkpoint.manifest
        device, wishes = opened
        self.chosen.stages["loader"] = checkpoint.loader
        if family is not None:
            self.chosen.stages["model"] = family
        specs = [block.mixer for block in spec.blocks]
        self.later_stages(plugins, checkpoint, specs, device, wishes)
        plan = self.attempt(lambda: self.sizes(checkpoint, spec))
        engine = self.attempt(
            lambda: engine_config(self.settings, plugins, checkpoint, self.chosen, plan, self.problems)
        )
        told = self.attempt(self.numerics)
        self.warnings += [left_out(error) for error in plugins.broken() if plugins.own(error.row)]
        self.warnings += [f"{manifest.warning}." for manifest in self.chosen.manifests() if manifest.warning]
        if self.problems or engine is None or plan is None:
            raise ConfigError(self.problems)
        return Resolution(
            engine,
            self.server,
            checkpoint.manifest,
            self.chosen.selections(),
            dict(self.settings.rows),
            self.warnings,
            plan,
            waivers(self.chosen, self.settings["numerics"]),
            self.settings.given(),
            told,
            self.chosen.replaceable(),
            again,
        )

    def rules(self, stage: Stage) -> None:
        """Run one stage of the table; values that are not served are looked at as well, for their problems."""
        found = list(findings(RULES, stage, self.facts))
        if self.asked is not None:
            asked = findings(RULES, stage, replace(self.facts, settings=self.asked))
            found += [finding for finding in asked if isinstance(finding, Problem)]
        for finding in found:
            if isinstance(finding, Problem) and finding.text not in self.problems:
                self.problems.append(finding.text)
            elif isinstance(finding, Warn) and finding.text not in self.warnings:
                self.warnings.append(finding.text)

    def attempt(self, stage: Callable[[], T]) -> T | None:
        """Run a stage; its errors, and what plugins raise in it, become problems."""
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

    def checkpoint(self, registry: PluginRegistry) -> Checkpoint:
        """Find the model; first what its directory says by itself."""
        facts, model = self.facts, self.settings["model"]
        facts.loaders = [row.name for row in registry.rows("loader")]
        facts.config = own_config(model)
        facts.files, facts.magic = look(model)
        self.rules("reference")
        draft = facts.speculative.get("model")
        facts.draft = own_config(draft) if isinstance(draft, str) else {}
        return find_checkpoint(self.settings, registry, facts)

    def platform(self, registry: PluginRegistry, checkpoint: Checkpoint | None) -> tuple[Device, dict[str, list[str]]]:
        """Choose the platform and take its proposals. Second: its preferences, names by argument."""
        settings = self.settings
        name = settings["device"]
        choice, device = select_platform(registry, None if name.lower() == "auto" else name)
        self.chosen.stages["platform"] = choice
        manifest = choice.manifest
        settings.derive("device", device.name, choice.selection.why)
        view = PlatformView(
            context=self.facts.context,
            facts=checkpoint.manifest.facts() if checkpoint else None,
            arguments=settings.values(),
            set_by_user=tuple(name for name in settings.rows if settings.user_set(name)),
            device=device,
        )
        proposals = manifest.call("core_propose", view=view) or {}
        settings.propose(proposals, f"platform {manifest.row.name}")
        wishes = {name: _names(proposals[name].value) for name in PREFERENCES if name in proposals}
        facts, answer = self.facts, registry.probe([manifest.row])[manifest.row]
        facts.device, facts.platform = device, manifest.spec
        facts.num_devices = len(answer.devices) if isinstance(answer, Probe) else 1
        facts.platforms = [row.name for row in registry.rows("platform")]
        facts.host_memory = host_memory()
        self.rules("platform")
        return device, wishes

    def later_stages(
        self,
        registry: PluginRegistry,
        checkpoint: Checkpoint,
        specs: list[MixerSpec],
        device: Device,
        wishes: Mapping[str, Sequence[str]],
    ) -> None:
        """Quantization, kernels, attention, proposer. Each failure is a problem, none stops the others."""
        settings, stages, facts = self.settings, self.chosen.stages, checkpoint.manifest.facts()
        platform = stages["platform"].manifest
        limits.settle_dtypes(settings, checkpoint.manifest)
        self.rules("model")
        named = settings["quantization"]
        named = None if named is None or named.lower() == "auto" else named
        quantization = self.attempt(lambda: select_quantization(registry, named, facts))
        if quantization is not None:
            stages["quantization"] = quantization
            settings.derive("quantization", self.chosen.name("quantization"), quantization.selection.why)
        package, preferred = platform.row.distribution, wishes.get("kernels", ())
        kernels = self.attempt(lambda: select_kernels(registry, device.name, settings["kernels"], preferred, package))
        if kernels is not None:
            stages["kernels"] = kernels
        attention = self.attempt(
            lambda: choices.choose_attention(
                settings, registry, specs, device.name, platform, wishes.get("attention_backend", ())
            )
        )
        stages.update(attention or {})
        if attention and not settings.user_set("attention_backend"):
            names = {name.partition(".")[2]: choice.selection for name, choice in attention.items()}
            text = ",".join(f"{kind}={selection.chosen[0]}" for kind, selection in names.items())
            settings.derive("attention_backend", text, next(iter(names.values())).why)
        self.speculative(registry, checkpoint)
        policy = self.attempt(lambda: select_policy(registry, settings["scheduling_policy"]))
        if policy is not None:
            stages["policy"] = policy
        self.facts.loader = checkpoint.loader.manifest.spec
        self.facts.quantization = self.chosen.name("quantization")
        self.facts.kernels = kernels.selection.chosen if kernels is not None else ()
        self.rules("plugins")
        for manifest in (platform, *(quantization.manifests if quantization else ())):
            for reason in dtype_reasons(manifest.spec, settings["dtype"]):
                kind = manifest.row.kind
                self.problems.append(f"--dtype {settings['dtype']}: {kind} plugin '{manifest.row.name}': {reason}.")

    def speculative(self, registry: PluginRegistry, checkpoint: Checkpoint | None) -> None:
        """The proposer, when one is asked for by a sound configuration."""
        config = self.settings["speculative_config"]
        method = config.get("method") if config else None
        if config and not isinstance(method, str):
            return  # R6 says so
        if checkpoint is None:
            if method is not None:
                self.attempt(lambda: registry.get("speculative", method))
            return
        facts = checkpoint.manifest.facts()
        choice = self.attempt(lambda: select_speculative(registry, method, facts))
        if choice is not None:
            self.chosen.stages["speculative"] = choice

    def sizes(self, checkpoint: Checkpoint, spec: DecoderSpec) -> MemoryPlan:
        """Weights, KV cache and whether the context fits."""
        settings, facts, given = self.settings, self.facts, self.settings.given()
        size, hybrid = settings["block_size"], not settings["disable_hybrid_kv_cache_manager"]
        groups, facts.block_bytes = kv_groups(spec, size, settings["kv_cache_dtype"], hybrid=hybrid)
        weights = planned_weights(settings, self.chosen, checkpoint.manifest, spec)
        proposer = proposer_weights(settings, self.chosen, checkpoint.manifest)
        facts.weights_bytes = weights + proposer
        self.rules("memory")
        memory, override = settings["kv_cache_memory_bytes"], settings["num_gpu_blocks_override"]
        num_blocks = override if override is not None else memory // facts.block_bytes
        tokens = max(settings["max_num_batched_tokens"], settings["max_num_seqs"])
        between = facts.capability("activation_dtype") or settings["dtype"]
        scheduler = scheduler_config(settings)
        max_logits = logit_rows(spec.vocab_size, scheduler.max_num_seqs, scheduler.num_speculative_tokens)
        workspace = workspace_bytes(spec, tokens, max_logits, between)
        plan = MemoryPlan(
            weights,
            facts.block_bytes,
            num_blocks,
            size,
            workspace,
            groups=groups,
            max_step_tokens=scheduler.max_step_tokens,
            proposer=proposer,
        )
        self.warnings += limits.fit(settings, plan, given.get("max_model_len"))
        return replace(plan, max_model_len=settings["max_model_len"])

    def numerics(self) -> str | None:
        """What results depend on."""
        stages, settings = self.chosen.stages, self.settings
        attention = [choice.manifest for name, choice in stages.items() if name.startswith("attention.")]
        kernels = stages["kernels"].manifests if "kernels" in stages else ()
        platform = {key.replace("-", "_"): value for key, value in settings["platform_config"].items()}
        types = settings["dtype"], settings["kv_cache_dtype"]
        return numerics_id(kernels, attention, platform, *types, settings["numerics"])


def _names(proposed: Any) -> list[str]:
    """A name, or a list of them."""
    return [proposed] if isinstance(proposed, str) else list(proposed or ())
