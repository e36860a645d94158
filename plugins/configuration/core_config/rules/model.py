"""Rules about the model: its length, its files, its loader and quantization.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from core.api.errors import UserError
from core.args.schema import flag_of
from core_config.locating.reference import read_reference
from core_config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn, is_count
from core_config.speculation.keys import speculator_keys
from core_runtime.models.families import unknown_keys
from core_runtime.models.unread import unknown_to_class
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.module_spec import ModuleSpec
from core_tokens.files import FILE_MODES

INPUT_SIZES = ("input_scale", "input_global_scale", "activation_scale")
"""Name endings of tensors with calibrated scales of inputs."""
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx")
OF_THE_HUB = ("revision", "download_dir", "hf_token", "hf_endpoint")
AUTO = -1


def length_limit(facts: Facts) -> tuple[int, str, str]:
    """Return the longest context for which the model was made, the key that gives it, and a reason.

    It is the smallest of the lengths that its configuration names, stretched by linear RoPE scaling when every layer is
    scaled.
    """
    assert facts.spec is not None
    config: Mapping[str, Any] = facts.manifest.config if facts.manifest is not None else {}
    named = {name: config[name] for name in LENGTH_KEYS if is_count(config.get(name))}
    name = min(named, key=lambda key: named[key], default="max_position_embeddings")
    limit = named.get(name, facts.spec.max_position)
    table = facts.spec.positions if isinstance(facts.spec, DecoderSpec) else None
    if table is not None and table.count < limit:
        return table.count, name, f"the model's {name}, {limit}, less the rows of its table that are no position"
    factor = facts.spec.stretch
    if factor > 1.0:
        return math.floor(limit * factor), name, f"the model's {name}, {limit}, times {factor:g} of RoPE scaling"
    return limit, name, f"the model's {name}"


def length_comes_from_the_model(facts: Facts) -> Findings:
    """An open context length is the longest that the model allows; the memory plan may lower it."""
    if facts.spec is not None and facts["max_model_len"] in (None, AUTO):
        limit, _, why = length_limit(facts)
        yield Derive("max_model_len", limit, why, force=True)


def length_fits_the_model(facts: Facts) -> Findings:
    """No context is longer than the one for which the model was made."""
    wanted = facts["max_model_len"]
    if facts.spec is None or wanted in (None, AUTO):
        return
    limit, name, why = length_limit(facts)
    grown = facts.spec.growth if isinstance(facts.spec, DecoderSpec) else 1.0
    if grown > 1.0:
        limit, why = math.floor(limit * grown), f"{why}, times {grown:g} of dynamic RoPE scaling"
    if wanted < 1:
        yield Problem(f"--max-model-len {wanted}: expected at least 1, or auto.")
    elif wanted > limit:
        yield Problem(
            f"--max-model-len {wanted}: {why} is {limit}. Choose at most {limit}, or extend the model with "
            f"--hf-overrides.{name} {wanted} (and its RoPE scaling)."
        )


def unknown_keys_are_listed(facts: Facts) -> Findings:
    """Keys of the configuration that are not read are ignored, and named once."""
    if facts.spec is None or facts.manifest is None:
        return
    config = facts.manifest.config
    if isinstance(facts.spec, ModuleSpec):
        if "auto_map" in config and facts["trust_remote_code"]:  # its own class, whose keys are not known
            return
        who = f"transformers' class of '{facts.spec.family}' does not know"
        unknown = unknown_to_class(config)
    else:
        who = "no known model has"
        try:
            unknown = unknown_keys(config)
        except UserError:  # a plugin's family, which reads its own keys
            return
    if unknown:
        names = ", ".join(sorted(unknown))
        yield Warn(f"the model's configuration has keys that {who}; they are ignored: {names:.400}.")


def quantization_fits_the_platform(facts: Facts) -> Findings:
    """A platform that declares `quantization` serves only these methods."""
    allowed = facts.capability("quantization")
    if facts.quantization is not None and allowed is not None and facts.quantization not in allowed:
        name = facts.platform.name if facts.platform else ""
        yield Problem(
            f"--quantization {facts.quantization}: platform '{name}' serves {', '.join(allowed) or 'none'}; "
            "choose another model or --device."
        )


def quantization_without_kernels_is_slow(facts: Facts) -> Findings:
    """A method without kernels of the platform runs on the reference operations."""
    if facts.quantization is not None and not facts.kernels:
        yield Warn(
            f"quantization '{facts.quantization}' runs with the slow reference operations: no kernels plugin fits; "
            "see `core plugins list --kind=kernels`."
        )


def no_method_is_to_be_removed(facts: Facts) -> Findings:
    """Every quantization method may be used without a permission."""
    if facts["allow_deprecated_quantization"]:
        yield Warn("--allow-deprecated-quantization: no effect, as no quantization method is marked for removal.")


def loader_takes_quantized_checkpoints(facts: Facts) -> Findings:
    """A loader that declares `quantized` false delivers plain tensors only."""
    if (
        facts.loader is not None
        and facts.quantization is not None
        and facts.loader.capabilities.get("quantized") is False
    ):
        yield Problem(
            f"--load-format {facts.loader.name}: cannot load a checkpoint quantized with '{facts.quantization}'; "
            "choose --load-format auto."
        )


def loader_settings_go_to_the_loader(facts: Facts) -> Findings:
    """The settings belong to the chosen loader, which refuses unknown keys."""
    if facts["model_loader_extra_config"] and facts.loader is not None:
        why = f"goes to loader '{facts.loader.name}'"
        yield Derive("model_loader_extra_config", facts["model_loader_extra_config"], why, canonical=True)


def bitsandbytes_is_read_as_safetensors(facts: Facts) -> Findings:
    """The load format `bitsandbytes`, a loader in vLLM, is the usual loader with the quantization method."""
    if facts["load_format"] != "bitsandbytes" or "bitsandbytes" in facts.loaders:
        return
    declared = facts.config.get("quantization_config")
    method = declared.get("quant_method") if isinstance(declared, Mapping) else None
    if method not in (None, "bitsandbytes"):
        yield Problem(
            f"--load-format bitsandbytes: the checkpoint is quantized with {method}; leave the argument out to have it read."
        )
        return
    yield Warn("--load-format bitsandbytes: the usual loader reads such files; --quantization bitsandbytes is enough.")
    yield Derive("load_format", "auto", "the usual loader reads files of bitsandbytes", force=True)
    if method is None and facts["quantization"] is None:
        why = "--load-format bitsandbytes rounds a plain checkpoint, as vLLM's loader of this name does"
        yield Derive("quantization", "bitsandbytes", why)


def measured_sizes_of_inputs_are_not_used(facts: Facts) -> Findings:
    """Inputs of quantized layers are rounded by their own maximum or not at all; calibrated scales are not used."""
    if facts.quantization is None or facts.manifest is None:
        return
    if (facts["quantization_config"] or {}).get("activation") == "declared":
        return
    measured = [name for name in facts.manifest.tensors if name.endswith(INPUT_SIZES)]
    if measured:
        yield Warn(
            f"The checkpoint has measured sizes of inputs ({measured[0]} and {len(measured) - 1} more), which are not used: "
            "inputs of quantized layers are rounded by their own sizes, or not at all, so results differ slightly from those "
            "of engines that use them (--quantization-config.activation declared uses them)."
        )


def prefixes_are_shared_or_not(facts: Facts) -> Findings:
    """`--disable-cascade-attn` agrees with what the attention backends do."""
    asked = facts["disable_cascade_attn"]
    names = ", ".join(facts.cascades)
    if asked and names:
        yield Problem(
            f"--disable-cascade-attn: {names} reads a prefix that sequences share once, where that changes no bit; leave the "
            "argument out, or choose another --attention-backend."
        )
    elif asked is False and not names:
        yield Problem(
            "--no-disable-cascade-attn: no attention backend of this model reads a shared prefix once; leave the argument out, "
            "or choose --attention-backend cpu_paged."
        )


def gguf_file_has_its_own_loader(facts: Facts) -> Findings:
    """A GGUF file can only be read by its own loader."""
    is_gguf = facts.magic[:4] == b"GGUF"
    if is_gguf and facts.given("load_format") and facts["load_format"] not in ("auto", "gguf"):
        yield Warn(
            f"--load-format {facts['load_format']}: the model is a GGUF file; leave it out to have it read as one."
        )


def model_has_a_name(facts: Facts) -> Findings:
    """An empty name is refused, because it would mean the current directory."""
    for name in ("model", "tokenizer"):
        if isinstance(facts[name], str) and not facts[name].strip():
            yield Problem(f"--{name} '': expected a path or a hub name; leave it out for the default.")


def speculator_serves_its_verifier(facts: Facts) -> Findings:
    """A draft model that names its target is served as a draft: the target becomes the model."""
    config = facts.config.get("speculators_config")
    verifier = config.get("verifier") if isinstance(config, Mapping) else None
    target = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    if not isinstance(config, Mapping) or not target or "://" in str(facts["model"]):
        return
    drafts = {**speculator_keys(facts.config), "model": facts["model"]}
    why = f"'{facts['model']}' is a speculator of it"
    yield Warn(f"'{facts['model']}' is a speculator: '{target}' is served, and it drafts.")
    yield Derive("speculative_config", drafts, f"'{facts['model']}' is a speculator")
    yield Derive("tokenizer", target, why)
    yield Derive("model", target, why, force=True)


def offline_hub_name_is_its_snapshot(facts: Facts) -> Findings:
    """Without the network a hub name means its snapshot on this machine."""
    offline = facts.environ.get("HF_HUB_OFFLINE", "").lower()
    if facts.snapshot is not None and offline in ("1", "on", "yes", "true"):
        yield Derive("model", facts.snapshot, "the hub is offline; this is its snapshot here", force=True)


def longest_answer_comes_from_the_generation_config(facts: Facts) -> Findings:
    """The generation configuration limits the answer of every request."""
    override = facts["override_generation_config"]
    generation = facts.manifest.generation if facts.manifest is not None else {}
    source = facts["generation_config"]
    names = ("max_new_tokens", "max_tokens", "max-tokens")
    given = [override[name] for name in names if override.get(name) is not None]
    mine = given[0] if given else None
    value = mine
    if mine is None and source == "auto":
        value = generation.get("max_new_tokens")
    if mine is not None and not is_count(mine):
        yield Problem(f"--override-generation-config.max_new_tokens {mine!r}: expected an integer from 1.")
    elif is_count(value):
        where = "override_generation_config" if mine is not None else "the checkpoint's generation configuration"
        yield Derive("generation_config.max_new_tokens", value, f"{where}: the most that a request gets")


def remote_code_is_not_run(facts: Facts) -> Findings:
    """Only the modules of transformers may come as code of a checkpoint."""
    if facts["trust_remote_code"] and not isinstance(facts.spec, ModuleSpec):
        yield Warn("--trust-remote-code has no effect: this model runs without code from its checkpoint.")


def revision_needs_its_owner(facts: Facts) -> Findings:
    """A revision needs the model or tokenizer that it belongs to."""
    for name, owner in (("revision", "model"), ("tokenizer_revision", "tokenizer")):
        if facts[name] is not None and facts[owner] is None:
            yield Problem(f"{flag_of(name)}: names a revision, but of nothing; name its owner with --{owner}.")


def hub_arguments_need_a_hub(facts: Facts) -> Findings:
    """Arguments about downloads have no effect when nothing comes from the hub."""
    if facts.snapshot is not None:
        return
    for place in (facts["model"], facts["tokenizer"], facts.speculative.get("model")):
        if isinstance(place, str) and read_reference(place).kind != "path":
            return
    given = [name for name in OF_THE_HUB if facts.given(name) and not facts.origin(name).startswith("environment")]
    if given:
        flags = ", ".join(flag_of(name) for name in given)
        yield Warn(f"{flags}: no effect: nothing comes from the hub.")


def a_tokenizer_that_is_not_wanted(facts: Facts) -> Findings:
    """A tokenizer's name has no effect when no tokenizer is loaded."""
    if facts["skip_tokenizer_init"] and facts["tokenizer"] is not None:
        yield Warn("--tokenizer has no effect: --skip-tokenizer-init runs without any.")


def strategies_of_torchao_are_of_its_files(facts: Facts) -> Findings:
    """The strategy for torchao's files says nothing about others."""
    if facts["safetensors_load_strategy"] == "torchao" and facts.quantization != "torchao":
        yield Problem(
            "--safetensors-load-strategy torchao: the checkpoint is none of torchao's; expected 'lazy', 'eager' or 'prefetch', "
            "or leave it out."
        )


def torchs_files_are_read_in_the_hosts_memory(facts: Facts) -> Findings:
    """A device for torch's files has no effect."""
    if facts.given("pt_load_map_location"):
        yield Warn(
            f"--pt-load-map-location {facts['pt_load_map_location']}: no effect: files of torch are read in the host's memory, "
            "and each device gets its part of them."
        )


def arguments_of_a_tokenizer_need_a_plugin(facts: Facts) -> Findings:
    """Own arguments belong to a plugin, and the engine's own modes take none."""
    is_plugin = facts["tokenizer_mode"] not in FILE_MODES and not facts["skip_tokenizer_init"]
    if facts["tokenizer_config"] and not is_plugin:
        yield Problem(
            "--tokenizer-config: no tokenizer plugin is used; name one with --tokenizer-mode, or leave it out."
        )


def served_names_are_names(facts: Facts) -> Findings:
    """A client could not ask for a name without characters."""
    for name in facts["served_model_name"] or []:
        if not name.strip():
            yield Problem(f"--served-model-name {name!r}: the name is empty; expected what clients write as `model`.")


def served_names_swallow_the_model(facts: Facts) -> Findings:
    """A model that follows a list of served names on the command line is parsed as one more name."""
    names = facts["served_model_name"] or []
    if facts["model"] is not None or len(names) < 2:
        return
    if "/" in names[-1] or names[-1].endswith(".gguf"):
        yield Problem(
            f"--served-model-name {' '.join(names)}: no model is named, and '{names[-1]}' looks like one; "
            "write the model first: core serve MODEL --served-model-name NAME."
        )


def a_limit_of_processors_needs_some(facts: Facts) -> Findings:
    """A time limit for logits processors has no effect without any."""
    if facts.given("logits_processor_timeout") and not facts["logits_processors"]:
        yield Warn("--logits-processor-timeout has no effect without --logits-processors.")


RULES: tuple[Rule, ...] = (
    Rule(model_has_a_name),
    Rule(served_names_are_names),
    Rule(a_limit_of_processors_needs_some),
    Rule(revision_needs_its_owner),
    Rule(no_method_is_to_be_removed),
    Rule(a_tokenizer_that_is_not_wanted),
    Rule(arguments_of_a_tokenizer_need_a_plugin),
    Rule(torchs_files_are_read_in_the_hosts_memory),
    Rule(strategies_of_torchao_are_of_its_files, "plugins"),
    Rule(served_names_swallow_the_model),
    Rule(bitsandbytes_is_read_as_safetensors, "reference"),
    Rule(gguf_file_has_its_own_loader, "reference"),
    Rule(speculator_serves_its_verifier, "reference"),
    Rule(hub_arguments_need_a_hub, "model"),
    Rule(offline_hub_name_is_its_snapshot, "model"),
    Rule(remote_code_is_not_run, "model"),
    Rule(length_fits_the_model, "model"),
    Rule(unknown_keys_are_listed, "model"),
    Rule(length_comes_from_the_model, "model"),
    Rule(longest_answer_comes_from_the_generation_config, "model"),
    Rule(quantization_fits_the_platform, "plugins"),
    Rule(quantization_without_kernels_is_slow, "plugins"),
    Rule(loader_takes_quantized_checkpoints, "plugins"),
    Rule(loader_settings_go_to_the_loader, "plugins"),
    Rule(prefixes_are_shared_or_not, "plugins"),
    Rule(measured_sizes_of_inputs_are_not_used, "plugins"),
)
