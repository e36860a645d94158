"""The stage that chooses the other plugins: quantization, kernels, attention, proposer, executor, policy, logits
processors.

Owns: which argument and which facts feed which choice. Never does: rank candidates (`core_config.selection` does).
Called by: resolve.
"""

from __future__ import annotations

from core.plugin.kinds import normalize
from core_config.media import needs_spans, own_processor, processed, transcribes, why_not, why_not_pooled
from core_config.selection import (
    select_adapters,
    select_executor,
    select_grammars,
    select_io_processor,
    select_kernels,
    select_logits_processors,
    select_policy,
    select_processor,
    select_quantization,
    select_speculative,
    select_tokenizer,
)
from core_config.selection.ranking import Choice
from core_config.selection.reasons import dtype_reasons
from core_config.stages import limits
from core_config.stages.attempt import Attempt
from core_config.stages.attention import choose_attention, skipped_dtypes
from core_config.stages.checkpoint import Checkpoint
from core_config.stages.chosen import ChosenPlatform
from core_config.stages.kv_connectors import choose_kv_connectors
from core_config.stages.quantization_names import METHOD_NAMES
from core_config.stages.waivers import wanted_promise
from core_config.structured_outputs import structured_outputs_config
from core_media.sound.config import MODEL_TYPE
from core_runtime.specs.checkpoint import CheckpointFacts
from core_runtime.specs.module_spec import ModelSpec
from core_tokens.files import FILE_MODES


def choose_plugins(
    attempt: Attempt, checkpoint: Checkpoint, family: Choice | None, spec: ModelSpec, platform: ChosenPlatform
) -> None:
    """Make every later choice, after the data types. Each failure is a problem; none stops the others.

    family: the plugin that reads the model's configuration, None for the table of families.
    spec: shape of the model.
    """
    stages = attempt.chosen.stages
    stages["loader"] = checkpoint.loader
    if family is not None:
        stages["model"] = family
    limits.settle_dtypes(attempt.settings, checkpoint.manifest)
    attempt.run_rules("model")
    choose_quantization(attempt, checkpoint.manifest.facts())
    _choose_kernels(attempt, platform)
    spans = needs_spans(attempt.settings, checkpoint.path, checkpoint.manifest)
    _choose_attention(attempt, spec, platform, spans)
    choose_proposer(attempt, checkpoint)
    _choose_executor(attempt, checkpoint.manifest.facts(), platform)
    _choose_policy(attempt)
    _choose_grammars(attempt)
    _choose_logits_processors(attempt)
    _choose_adapters(attempt)
    _choose_processor(attempt, checkpoint)
    _choose_tokenizer(attempt)
    _choose_io_processor(attempt)
    choose_kv_connectors(attempt)
    _run_plugin_rules(attempt, checkpoint)
    _check_dtypes(attempt, platform)


def choose_proposer(attempt: Attempt, checkpoint: Checkpoint | None) -> None:
    """Choose the proposer, if the configuration is valid and requests one. Without a checkpoint, only check that there
    is such a plugin.
    """
    config = attempt.settings.mapping("speculative_config")
    method = config.get("method")
    if config and not isinstance(method, str):
        return  # a rule reports it
    if checkpoint is None:
        if method is not None:
            attempt.answer_of(lambda: attempt.plugins.get("speculative", method))
        return
    facts = checkpoint.manifest.facts()
    choice = attempt.answer_of(lambda: select_speculative(attempt.plugins, method, facts))
    if choice is not None:
        attempt.chosen.stages["speculative"] = choice


def choose_quantization(attempt: Attempt, facts: CheckpointFacts) -> None:
    """Choose the method that unpacks the checkpoint, or none."""
    named = attempt.settings["quantization"]
    if named is not None and named.lower() == "auto":
        named = None
    choice = attempt.answer_of(lambda: select_quantization(attempt.plugins, named, facts, METHOD_NAMES))
    if choice is not None:
        attempt.chosen.stages["quantization"] = choice
        name = attempt.chosen.name("quantization")
        attempt.settings.derive("quantization", name, choice.selection.why)


def _choose_kernels(attempt: Attempt, platform: ChosenPlatform) -> None:
    named = attempt.settings["kernels"]
    device = platform.device.name
    preferred = platform.wishes.get("kernels", ())
    package = platform.manifest.row.distribution
    promise = wanted_promise(attempt.settings)
    choice = attempt.answer_of(lambda: select_kernels(attempt.plugins, device, named, preferred, package, promise))
    if choice is not None:
        attempt.chosen.stages["kernels"] = choice


def _choose_attention(attempt: Attempt, spec: ModelSpec, platform: ChosenPlatform, spans: bool) -> None:
    settings = attempt.settings
    mixers = list(spec.mixers)
    dtypes = attempt.answer_of(lambda: skipped_dtypes(settings, spec)) or ()
    found = attempt.answer_of(
        lambda: choose_attention(settings, attempt.plugins, mixers, platform, dtypes, spans=spans)
    )
    if not found:
        return
    attempt.chosen.stages.update(found)
    if not settings.user_set("attention_backend"):
        names = []
        for stage, choice in found.items():
            kind = stage.removeprefix("attention.")
            backend = choice.selection.chosen[0]
            names.append(f"{kind}={backend}")
        first = next(iter(found.values()))
        settings.derive("attention_backend", ",".join(names), first.selection.why)


def _choose_executor(attempt: Attempt, facts: CheckpointFacts, platform: ChosenPlatform) -> None:
    named = attempt.settings["executor"]
    if named.lower() == "auto":
        named = None
    device = platform.device.name
    choice = attempt.answer_of(lambda: select_executor(attempt.plugins, named, device, facts))
    if choice is not None:
        attempt.chosen.stages["executor"] = choice
        attempt.settings.derive("executor", attempt.chosen.name("executor"), choice.selection.why)


def _choose_policy(attempt: Attempt) -> None:
    named = attempt.settings["scheduling_policy"]
    choice = attempt.answer_of(lambda: select_policy(attempt.plugins, named))
    if choice is not None:
        attempt.chosen.stages["policy"] = choice


def _choose_grammars(attempt: Attempt) -> None:
    config = structured_outputs_config(attempt.settings)
    choice = attempt.answer_of(lambda: select_grammars(attempt.plugins, config.backend, alone=config.disable_fallback))
    if choice is not None:
        attempt.chosen.stages["grammar"] = choice


def _choose_logits_processors(attempt: Attempt) -> None:
    names = list(attempt.settings["logits_processors"] or ())
    manifest = attempt.facts.manifest
    if manifest is not None and transcribes(manifest) and MODEL_TYPE not in names:
        names.insert(0, MODEL_TYPE)  # the processor of transcriptions has the name of the models
    if not names:
        return
    choice = attempt.answer_of(lambda: select_logits_processors(attempt.plugins, names))
    if choice is not None:
        attempt.chosen.stages["logits_processor"] = choice


def _choose_adapters(attempt: Attempt) -> None:
    if not attempt.settings["enable_lora"]:
        return
    choice = attempt.answer_of(lambda: select_adapters(attempt.plugins))
    if choice is not None:
        attempt.chosen.stages["adapter"] = choice


def _choose_processor(attempt: Attempt, checkpoint: Checkpoint) -> None:
    """Choose what processes media, for a model whose media are served."""
    settings = attempt.settings
    why_pooled = why_not_pooled(settings, attempt.facts.pooling)
    if why_pooled or why_not(settings, checkpoint.path, checkpoint.manifest):
        return
    named, own = settings["mm_processor"], own_processor(checkpoint.manifest)
    modalities = processed(settings, checkpoint.manifest)
    choice = attempt.answer_of(lambda: select_processor(attempt.plugins, named, own, modalities))
    if choice is not None:
        attempt.chosen.stages["processor"] = choice


def _choose_tokenizer(attempt: Attempt) -> None:
    """Choose the tokenizer plugin, where `--tokenizer-mode` names one rather than the files to read."""
    mode = attempt.settings["tokenizer_mode"]
    if normalize(mode) in FILE_MODES or attempt.settings["skip_tokenizer_init"]:
        return
    choice = attempt.answer_of(lambda: select_tokenizer(attempt.plugins, mode))
    if choice is not None:
        attempt.chosen.stages["tokenizer"] = choice


def _choose_io_processor(attempt: Attempt) -> None:
    """Choose the IO processor, where one is named."""
    name = attempt.settings["io_processor_plugin"]
    if name is None:
        return
    choice = attempt.answer_of(lambda: select_io_processor(attempt.plugins, name))
    if choice is not None:
        attempt.chosen.stages["io_processor"] = choice


def _run_plugin_rules(attempt: Attempt, checkpoint: Checkpoint) -> None:
    """Run the rules that depend on the chosen plugins."""
    facts = attempt.facts
    chosen = attempt.chosen
    kernels = chosen.stages.get("kernels")
    facts.loader = checkpoint.loader.manifest.spec
    facts.quantization = chosen.name("quantization")
    facts.cascades = chosen.with_capability("attention", "cascade")
    facts.kernels = kernels.selection.chosen if kernels is not None else ()
    attempt.run_rules("plugins")


def _check_dtypes(attempt: Attempt, platform: ChosenPlatform) -> None:
    """Check the data types against those that the platform and the quantization method support."""
    quantization = attempt.chosen.stages.get("quantization")
    dtype = attempt.settings["dtype"]
    manifests = [platform.manifest]
    if quantization is not None:
        manifests += quantization.manifests
    for manifest in manifests:
        for reason in dtype_reasons(manifest.spec, dtype):
            row = manifest.row
            attempt.problems.append(f"--dtype {dtype}: {row.kind} plugin '{row.name}': {reason}.")
