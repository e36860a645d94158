"""From arguments to everything that an engine and a server are built from.

Owns: the order of stages, the collection of all problems. Never does: import torch, read a weight, start anything.
Called by: `core serve`, `core plugins explain`, `LLM`.

A stage that fails adds its sentences; stages that need its answer are left out, all others still run, so that one
attempt reports as much as can be known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from core.api.checkpoint import CheckpointManifest
from core.api.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, ServerConfig
from core.api.errors import ConfigError, CoreError, PluginError
from core.api.specs import AttentionSpec
from core.args.sources import merge
from core.config import choices, limits
from core.config.checkpoint import Checkpoint, find_checkpoint, find_tokenizer
from core.config.choices import Chosen
from core.config.generation import eos_token_ids, generation_defaults
from core.config.memory import MemoryPlan
from core.config.relations import check_relations
from core.config.server import server_config
from core.config.settings import Row, Settings
from core.plugin.capabilities import dtype_reasons
from core.plugin.hookspecs import Device, PlatformView
from core.plugin.registry import PluginRegistry
from core.plugin.selection import (
    Choice,
    Selection,
    select_kernels,
    select_platform,
    select_quantization,
    select_speculative,
)

Context = Literal["serve", "llm", "explain"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resolution:
    """The outcome.

    arguments: {name: (value, origin, reason)}. memory: bytes, by shapes alone.
    waivers: what makes a request's tokens depend on its neighbours, a sentence each; empty when nothing does.
    """

    engine: EngineConfig
    server: ServerConfig
    manifest: CheckpointManifest
    selections: list[Selection]
    arguments: dict[str, Row]
    warnings: list[str]
    memory: MemoryPlan
    waivers: list[str]


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
    merged = merge(arguments, os.environ if environ is None else environ)
    resolver = _Resolver(Settings(merged), context, [*problems, *merged.problems])
    resolver.server = server_config(merged, resolver.problems)
    return resolver.run(registry)


@dataclass(slots=True)
class _Resolver:
    """State of one resolution."""

    settings: Settings
    context: Context
    problems: list[str]
    warnings: list[str] = field(default_factory=list)
    chosen: Chosen = field(default_factory=Chosen)
    server: ServerConfig = field(default_factory=ServerConfig)

    def run(self, registry: PluginRegistry | None) -> Resolution:
        """All stages in order."""
        found, warned = check_relations(self.settings)
        self.problems += found
        self.warnings += warned
        plugins = registry or self.attempt(lambda: PluginRegistry(words=self.settings["plugins"]))
        if plugins is None:
            raise ConfigError(self.problems)
        checkpoint = self.attempt(lambda: find_checkpoint(self.settings, plugins))
        specs = self.attempt(lambda: attention_specs(checkpoint.manifest)) if checkpoint else None
        opened = self.attempt(lambda: self.platform(plugins, checkpoint))
        if checkpoint is None or specs is None or opened is None:
            self.speculative(plugins, checkpoint)
            raise ConfigError(self.problems)
        platform, device, wishes = opened
        self.chosen.stages["loader"] = checkpoint.loader
        self.chosen.stages["platform"] = platform
        self.later_stages(plugins, checkpoint, specs, device, wishes)
        plan = self.attempt(lambda: self.sizes(checkpoint.manifest, specs, device))
        engine = self.attempt(lambda: self.engine(plugins, checkpoint, plan, device))
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
            choices.waivers(self.chosen),
        )

    def attempt(self, stage: Callable[[], T]) -> T | None:
        """Run a stage; its errors become problems."""
        try:
            return stage()
        except ConfigError as error:
            self.problems += [problem for problem in error.problems if problem not in self.problems]
        except CoreError as error:
            self.problems.append(str(error))
        return None

    def platform(self, registry: PluginRegistry, checkpoint: Checkpoint | None) -> tuple[Choice, Device, Any]:
        """Choose the platform and take its proposals. The third item is its preference among attention backends."""
        settings = self.settings
        name = settings["device"]
        choice, device = select_platform(registry, None if name.lower() == "auto" else name)
        manifest = choice.manifest
        settings.derive("device", device.name, choice.selection.why)
        view = PlatformView(
            context=self.context,
            facts=checkpoint.manifest.facts() if checkpoint else None,
            arguments=settings.values(),
            set_by_user=tuple(name for name in settings.rows if settings.user_set(name)),
            device=device,
        )
        proposals = manifest.call("core_propose", view=view) or {}
        settings.propose(proposals, f"platform {manifest.row.name}")
        wishes = proposals["attention_backend"].value if "attention_backend" in proposals else ()
        return choice, device, wishes

    def later_stages(
        self, registry: PluginRegistry, checkpoint: Checkpoint, specs: list[AttentionSpec], device: Device, wishes: Any
    ) -> None:
        """Quantization, kernels, attention, proposer. Each failure is a problem, none stops the others."""
        settings, stages, facts = self.settings, self.chosen.stages, checkpoint.manifest.facts()
        platform = stages["platform"].manifest
        limits.settle_dtypes(settings, checkpoint.manifest)
        limits.settle_batch(settings)
        named = settings["quantization"]
        named = None if named is None or named.lower() == "auto" else named
        quantization = self.attempt(lambda: select_quantization(registry, named, facts))
        if quantization is not None:
            stages["quantization"] = quantization
            settings.derive("quantization", self.chosen.name("quantization"), quantization.selection.why)
        kernels = self.attempt(lambda: select_kernels(registry, device.name))
        if kernels is not None:
            stages["kernels"] = kernels
        attention = self.attempt(
            lambda: choices.choose_attention(settings, registry, specs, device.name, platform, wishes)
        )
        stages.update(attention or {})
        if attention and not settings.user_set("attention_backend"):
            names = {name.partition(".")[2]: choice.selection for name, choice in attention.items()}
            text = ",".join(f"{kind}={selection.chosen[0]}" for kind, selection in names.items())
            settings.derive("attention_backend", text, next(iter(names.values())).why)
        self.speculative(registry, checkpoint)
        for manifest in (platform, *(quantization.manifests if quantization else ())):
            for reason in dtype_reasons(manifest.spec, settings["dtype"]):
                kind = manifest.row.kind
                self.problems.append(f"--dtype {settings['dtype']}: {kind} plugin '{manifest.row.name}': {reason}.")

    def speculative(self, registry: PluginRegistry, checkpoint: Checkpoint | None) -> None:
        """The proposer, when one is asked for by a sound configuration."""
        config = self.settings["speculative_config"]
        method = config.get("method") if config else None
        if config and not isinstance(method, str):
            return
        if checkpoint is None:
            if method is not None:
                self.attempt(lambda: registry.get("speculative", method))
            return
        facts = checkpoint.manifest.facts()
        choice = self.attempt(lambda: select_speculative(registry, method, facts))
        if choice is not None:
            self.chosen.stages["speculative"] = choice

    def sizes(self, manifest: CheckpointManifest, specs: list[AttentionSpec], device: Device) -> MemoryPlan:
        """Context length and KV cache."""
        settings = self.settings
        asked = settings["max_model_len"] if settings.user_set("max_model_len") else None
        limits.settle_context(settings, position_limit(manifest))
        plan, warned = limits.settle_memory(settings, manifest, specs, device.memory_bytes, asked)
        self.warnings += warned
        return plan

    def engine(
        self, registry: PluginRegistry, checkpoint: Checkpoint, plan: MemoryPlan | None, device: Device
    ) -> EngineConfig:
        """Put the Structs together."""
        settings, manifest = self.settings, checkpoint.manifest
        served = tuple(settings["served_model_name"] or (checkpoint.served_as,))
        settings.derive("served_model_name", list(served), "the model as given")
        plugins = choices.plugin_choices(settings, registry, self.chosen, self.problems)
        generation = generation_defaults(
            manifest, settings["generation_config"], settings["override_generation_config"]
        )
        length = settings["max_model_len"] or 0
        model = ModelConfig(
            model=checkpoint.path,
            served_names=served,
            tokenizer=find_tokenizer(settings),
            dtype=settings["dtype"],
            max_model_len=length,
            vocab_size=int(manifest.config.get("vocab_size") or 0),
            hf_config=manifest.config,
            max_logprobs=settings["max_logprobs"],
            seed=settings["seed"],
            eos_token_ids=eos_token_ids(manifest, generation),
            generation=generation,
        )
        cache = CacheConfig(
            block_size=settings["block_size"],
            dtype=settings["kv_cache_dtype"],
            num_blocks=settings["num_gpu_blocks_override"],
            memory_bytes=plan.kv if plan else 0,
            enable_prefix_caching=settings["enable_prefix_caching"],
            hash_algorithm=settings["prefix_caching_hash_algo"],
        )
        return EngineConfig(
            model=model,
            cache=cache,
            scheduler=self.scheduler(length),
            plugins=plugins,
            device=device.name,
            disable_log_stats=settings["disable_log_stats"],
            use_tqdm_on_load=settings["use_tqdm_on_load"],
        )

    def scheduler(self, length: int) -> SchedulerConfig:
        """The scheduler's part."""
        settings = self.settings
        drafts = (settings["speculative_config"] or {}).get("num_speculative_tokens", 0)
        return SchedulerConfig(
            max_num_seqs=settings["max_num_seqs"],
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            max_model_len=length,
            enable_chunked_prefill=settings["enable_chunked_prefill"],
            long_prefill_token_threshold=settings["long_prefill_token_threshold"],
            policy=settings["scheduling_policy"],
            num_speculative_tokens=drafts if isinstance(drafts, int) else 0,
        )


def attention_specs(manifest: CheckpointManifest) -> list[AttentionSpec]:
    """The attention of every layer. Raises UserError for an unknown architecture, PluginError when the table fails."""
    from core.models import families

    try:
        return families.attention_specs(manifest.config)
    except CoreError:
        raise
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise PluginError(f"model '{manifest.ref}': its configuration cannot be understood: {error!r}.") from error


def position_limit(manifest: CheckpointManifest) -> int:
    """Longest context that the model was made for."""
    from core.models import families

    return families.decoder_spec(manifest.config).max_position
