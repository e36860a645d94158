"""Resolution of arguments to the configurations from which an engine and a server are built.

Owns: the order of stages, and another attempt without a plugin that failed. Never does: import torch, read a weight,
start anything. Called by: `core serve`, `core config`, `core plugins explain`, `LLM`.

A stage that fails adds its sentences. Stages that need its answer are skipped, and all others still run, so that one
attempt reports as many problems as possible.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from core.api.config import EngineConfig
from core.api.errors import ConfigError, PluginError
from core.plugin.registry import PluginRegistry
from core_config.arguments.sources import Merged, merge
from core_config.engine import engine_config
from core_config.experts import placement_of
from core_config.layout_cost import LayoutCost, layout_cost
from core_config.locating.files import magic_of, own_config
from core_config.media import derive_for_sounds, tower_bytes, why_not, why_not_pooled
from core_config.pooled.pooling import find_pooling
from core_config.quarantine import apply_quarantine
from core_config.resolution import Resolution
from core_config.rules import Facts
from core_config.rules.ranks import num_nodes
from core_config.selection.ranking import Choice
from core_config.selection.reasons import device_type
from core_config.served.adapters import adapter_settings
from core_config.served.answers import answer_settings
from core_config.served.apis import chosen_apis
from core_config.served.server import server_config
from core_config.served.server_config import ServerConfig
from core_config.speculation.acceptance import acceptance_waiver
from core_config.speculation.draft import find_draft
from core_config.stages.attempt import Attempt
from core_config.stages.checkpoint import Checkpoint, find_checkpoint
from core_config.stages.choices import choose_plugins, choose_proposer
from core_config.stages.chosen import ChosenPlatform
from core_config.stages.family import find_family, text_alone
from core_config.stages.forms import Form
from core_config.stages.isolation import left_out
from core_config.stages.memory import MemoryPlan
from core_config.stages.numerics import own_arguments, planned_numerics
from core_config.stages.operations import computed
from core_config.stages.platform import choose_platform
from core_config.stages.settings import Settings
from core_config.stages.sizes import plan_memory, planned_forms
from core_config.stages.waivers import attention_surprises, surprises, waivers
from core_config.stages.weights import quantization_plan
from core_config.step_work import StepWork
from core_config.token_sums import token_work
from core_config.token_work import TokenWork
from core_runtime.models.families import without_head
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.module_spec import ModelSpec, ModuleSpec

__all__ = ["Context", "Resolution", "resolve"]

Context = Literal["serve", "llm", "explain"]
Again = Callable[[PluginError], Resolution]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The input of every attempt. problems: problems of the command line and of the sources."""

    merged: Merged
    context: Context
    environ: Mapping[str, str]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Model:
    """The model of one attempt.

    located: checkpoint as its loader resolved it.
    checkpoint: the same checkpoint under canonical names.
    family: the plugin that described its shape; None: the table of families.
    """

    located: Checkpoint
    checkpoint: Checkpoint
    spec: ModelSpec
    family: Choice | None


def resolve(
    arguments: Mapping[str, Any],
    *,
    context: Context,
    registry: PluginRegistry | None = None,
    environ: Mapping[str, str] | None = None,
    problems: Sequence[str] = (),
) -> Resolution:
    """Resolve arguments, by schema name: plain values, or `Given` with an origin.

    registry: None: plugins are discovered (and restricted by `plugins`).
    environ: None: `os.environ`.
    problems: sentences of the command line's parser, reported together with the rest.
    Raises ConfigError with every problem.
    """
    environment = os.environ if environ is None else environ
    merged = merge(arguments, environment)
    further = [problem for problem in merged.problems if problem not in problems]
    return _resolve(_Inputs(merged, context, environment, (*problems, *further)), registry, [])


def _resolve(inputs: _Inputs, registry: PluginRegistry | None, warnings: list[str]) -> Resolution:
    """Run an attempt. When a plugin fails that the user did not name and that others can replace, run another one
    without it.

    warnings: one for each plugin that was left out before.
    """
    facts = Facts(Settings(inputs.merged), inputs.context, inputs.environ)
    said = [*warnings, *inputs.merged.warnings]
    attempt = Attempt(facts, list(inputs.problems), said, registry)

    def again(error: PluginError) -> Resolution:
        assert error.plugin is not None
        attempt.plugins.block(error.plugin, str(error).rstrip("."))
        return _resolve(inputs, attempt.plugins, [left_out(error), *warnings])

    try:
        return _run_stages(inputs.merged, attempt, again)
    except ConfigError:
        replaceable = attempt.chosen.replaceable()
        failed = [error for error in attempt.failures if error.plugin in replaceable]
        if not failed:
            raise
    return again(failed[0])


def _run_stages(merged: Merged, attempt: Attempt, again: Again) -> Resolution:
    """Run all stages in order. Raises ConfigError with every problem."""
    server = _with_plugins(merged, attempt)
    model, platform = _model_and_platform(attempt)
    checkpoint = model.checkpoint
    refusal = why_not(attempt.settings, checkpoint.path, checkpoint.manifest)
    spec = _task_of(attempt, model)
    refusal = refusal or why_not_pooled(attempt.settings, attempt.facts.pooling)
    server = msgspec.structs.replace(server, media_refusal=refusal)
    choose_plugins(attempt, checkpoint, model.family, spec, platform)
    if not why_not_pooled(attempt.settings, attempt.facts.pooling):
        attempt.facts.tower_bytes = tower_bytes(attempt.settings, model.located.path, model.located.manifest)
    attempt.draft = attempt.answer_of(lambda: find_draft(attempt, model.located, spec, platform))
    plan = attempt.answer_of(lambda: plan_memory(attempt, checkpoint, spec))
    settings = attempt.settings
    chosen = attempt.chosen
    engine = attempt.answer_of(
        lambda: engine_config(
            settings,
            attempt.plugins,
            checkpoint,
            spec,
            chosen,
            plan,
            attempt.draft,
            attempt.problems,
            pooling=attempt.facts.pooling,
        )
    )
    numerics = attempt.answer_of(lambda: planned_numerics(settings, chosen, () if plan is None else plan.layer_dtypes))
    _warn_of_plugins(attempt)
    forms = [] if plan is None else planned_forms(attempt, checkpoint, spec, platform.device)
    waived = _waived(attempt, platform, forms, spec)
    if attempt.problems or engine is None or plan is None:
        raise ConfigError(attempt.problems)

    def work() -> TokenWork | None:
        return _token_work(attempt, checkpoint, spec, plan)

    if settings["enable_mfu_metrics"] and (token := work()) is not None:
        server = msgspec.structs.replace(server, step_work=StepWork(token, server.num_ranks))
    return Resolution(
        engine=engine,
        server=server,
        manifest=checkpoint.manifest,
        selections=chosen.selections(),
        arguments=dict(settings.rows),
        warnings=attempt.warnings,
        memory=plan,
        waivers=[*waived, *acceptance_waiver(engine.acceptance)],
        given=settings.given(),
        numerics=numerics,
        replaceable=chosen.replaceable(),
        again=again,
        computed=lambda: computed(settings, attempt.plugins, chosen, spec, platform.device, forms),
        layout=_layout_of(attempt, spec, engine, plan),
        work=work,
    )


def _with_plugins(merged: Merged, attempt: Attempt) -> ServerConfig:
    """Discover the plugins; returns the server's settings, with what some of them declare for it."""
    server = server_config(merged, attempt.problems)
    _read_draft(attempt.facts)
    attempt.run_rules("arguments")
    discover(attempt)
    server = msgspec.structs.replace(server, answers=answer_settings(merged, attempt.plugins, attempt.problems))
    if attempt.facts.context != "serve":
        return server
    apis = chosen_apis(attempt.plugins, attempt.problems, attempt.warnings)
    adapters = adapter_settings(attempt.settings, attempt.plugins, attempt.problems)
    return msgspec.structs.replace(server, apis=apis, adapters=adapters)


def _task_of(attempt: Attempt, model: _Model) -> ModelSpec:
    """Settle whether the model generates or answers with vectors; returns its spec, for these without an output head."""
    spec, manifest = model.spec, model.checkpoint.manifest
    facts = attempt.facts
    facts.spec, facts.manifest = spec, manifest
    derive_for_sounds(attempt.settings, manifest)
    facts.pooling = attempt.answer_of(lambda: find_pooling(attempt.settings, model.checkpoint, spec))
    if facts.pooling is not None and isinstance(spec, DecoderSpec):
        return without_head(spec, manifest)
    return spec


def _layout_of(attempt: Attempt, spec: ModelSpec, engine: EngineConfig, plan: MemoryPlan) -> LayoutCost | None:
    """Return what steps cost with several ranks or engines."""
    settings = attempt.settings
    return layout_cost(
        spec,
        engine,
        plan,
        dtype=attempt.facts.capability("activation_dtype") or settings["dtype"],
        tensor=settings["tensor_parallel_size"],
        stages=settings["pipeline_parallel_size"],
        gloo=settings["disable_custom_all_reduce"],
        nodes=num_nodes(attempt.facts),
        experts=placement_of(settings),
        context=settings["decode_context_parallel_size"],
    )


def _token_work(attempt: Attempt, checkpoint: Checkpoint, spec: ModelSpec, plan: MemoryPlan) -> TokenWork | None:
    """Return the work of one token; None for a model whose matrices are not known from its shape."""
    if not isinstance(spec, DecoderSpec):
        return None
    settings = attempt.settings
    quantization = quantization_plan(settings, attempt.chosen, checkpoint.manifest)
    return token_work(spec, quantization, settings["dtype"], settings["kv_cache_dtype"], plan.layer_dtypes)


def _waived(attempt: Attempt, platform: ChosenPlatform, forms: Sequence[Form], spec: ModelSpec) -> list[str]:
    """Return the waivers. With `--batch-invariant` each is a problem; without it, those that nobody chose are warnings."""
    settings = attempt.settings
    device = device_type(platform.device.name)
    requested = settings["batch_invariant"]
    given = own_arguments(settings)
    found = waivers(attempt.chosen, settings["numerics"], device, forms, given, requested=requested)
    if requested:
        attempt.problems += [f"--batch-invariant: {sentence}." for sentence in found]
    else:
        attempt.warnings += surprises(attempt.chosen, device, forms)
        attempt.warnings += attention_surprises(attempt.chosen, settings["numerics"], device, spec.mixers)
    return found


def _model_and_platform(attempt: Attempt) -> tuple[_Model, ChosenPlatform]:
    """Run the stages that need only the checkpoint. Raises ConfigError with every problem where model or platform is
    not found.
    """
    located = attempt.answer_of(lambda: find_model(attempt))
    checkpoint = located
    model = None
    if located is not None:
        model = attempt.answer_of(lambda: _find_family(attempt, located))
        said = ""
        if why_not(attempt.settings, located.path, located.manifest):
            said = text_alone(located.manifest.config, located.manifest.tensors)
        attempt.warnings += [said] if said else []
    if model is not None:
        checkpoint = model.checkpoint
    platform = attempt.answer_of(lambda: choose_platform(attempt, checkpoint))
    if model is None or platform is None:
        choose_proposer(attempt, checkpoint)
        raise ConfigError(attempt.problems)
    return model, platform


def discover(attempt: Attempt) -> None:
    """Discover the plugins that the arguments allow. Raises ConfigError when that fails."""
    if attempt.registry is None:
        words = attempt.settings["plugins"]
        attempt.registry = attempt.answer_of(lambda: PluginRegistry(words=words))
    if attempt.registry is None:
        raise ConfigError(attempt.problems)
    attempt.answer_of(lambda: apply_quarantine(attempt))
    if attempt.settings["device"].lower() == "auto":
        attempt.registry.start_probes()  # they run while the checkpoint is resolved


def find_model(attempt: Attempt) -> Checkpoint:
    """Locate and resolve the model. Before that, rules run on the files in its directory."""
    facts = attempt.facts
    model = attempt.settings["model"]
    facts.loaders = [row.name for row in attempt.plugins.rows("loader")]
    facts.config = own_config(model)
    facts.magic = magic_of(model)
    attempt.run_rules("reference")
    _read_draft(facts)  # a rule may have made the model the draft of another one
    checkpoint = find_checkpoint(attempt.settings, attempt.plugins, facts)
    attempt.warnings += facts.warnings
    return checkpoint


def _read_draft(facts: Facts) -> None:
    draft = facts.speculative.get("model")
    facts.draft = own_config(draft) if isinstance(draft, str) else {}


def _find_family(attempt: Attempt, located: Checkpoint) -> _Model:
    """Return the model's shape, with the plugin that described it."""
    settings = attempt.settings
    checkpoint, spec, family = find_family(
        attempt.plugins, located, settings["model_impl"], trust_remote_code=settings["trust_remote_code"]
    )
    if isinstance(spec, ModuleSpec):
        settings.derive("model_impl", "transformers", "no row of the table of families and no plugin serves the model")
    else:
        settings.derive("model_impl", "core", "the engine has its own implementation")
    return _Model(located, checkpoint, spec, family)


def _warn_of_plugins(attempt: Attempt) -> None:
    """Warn of broken plugins that the user did not name, and add the warnings that chosen plugins give about
    themselves.
    """
    plugins = attempt.plugins
    for error in plugins.broken():
        if plugins.own(error.row):
            attempt.warnings.append(left_out(error))
    for manifest in attempt.chosen.manifests():
        if manifest.warning:
            attempt.warnings.append(f"{manifest.warning}.")
