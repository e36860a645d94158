"""Rules about the model: its length, its files, its loader and quantization.

Owns: those rules and their rows. Called by: the table (`core.config.rules`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from core.api.specs import AttentionSpec
from core.config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn, is_count

LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx")
AUTO = -1
_SHARD = re.compile(r"-rank-(\d+)-part-\d+\.safetensors$")


def length_limit(facts: Facts) -> tuple[int, str, str]:
    """The longest context that the model was made for, the key that says so, and a reason.

    The smallest of the lengths that its configuration names; stretched by linear RoPE scaling when every layer is scaled.
    """
    assert facts.spec is not None
    config: Mapping[str, Any] = facts.manifest.config if facts.manifest is not None else {}
    named = {name: config[name] for name in LENGTH_KEYS if is_count(config.get(name))}
    name = min(named, key=lambda key: named[key], default="max_position_embeddings")
    limit = named.get(name, facts.spec.max_position)
    ropes = [block.rope for block in facts.spec.blocks if block.rope is not None]
    factor = min((rope.factor if rope.rope_type == "linear" else 1.0 for rope in ropes), default=1.0)
    if factor > 1.0:
        return math.floor(limit * factor), name, f"the model's {name}, {limit}, times {factor:g} of RoPE scaling"
    return limit, name, f"the model's {name}"


def r8_length(facts: Facts) -> Findings:
    """Unset or auto: what the model allows; the memory plan may lower it."""
    if facts.spec is not None and facts["max_model_len"] in (None, AUTO):
        limit, _, why = length_limit(facts)
        yield Derive("max_model_len", limit, why, force=True)


def r8_too_long(facts: Facts) -> Findings:
    """Beyond what the model was made for."""
    wanted = facts["max_model_len"]
    if facts.spec is None or wanted in (None, AUTO):
        return
    limit, name, why = length_limit(facts)
    if wanted < 1:
        yield Problem(f"--max-model-len {wanted}: expected at least 1, or auto.")
    elif wanted > limit:
        yield Problem(
            f"--max-model-len {wanted}: {why} is {limit}. Choose at most {limit}, or extend the model with "
            f"--hf-overrides.{name} {wanted} (and its RoPE scaling)."
        )


def r10_window(facts: Facts) -> Findings:
    """Without its window the model may see no more than the window."""
    specs = [block.mixer for block in facts.spec.blocks] if facts.spec else []
    windows = [spec.window for spec in specs if isinstance(spec, AttentionSpec) and spec.window]
    if not facts["disable_sliding_window"] or not windows:
        return
    window, length = min(windows), facts["max_model_len"]
    if length is None or length <= window:
        return
    if facts.given("max_model_len") and facts.settings.given()["max_model_len"] not in (None, AUTO):
        yield Problem(
            f"--max-model-len {length}: with --disable-sliding-window at most the window, {window}; choose less."
        )
    else:
        yield Derive("max_model_len", window, f"the model's window, {window}, is disabled", force=True)


def r7_quantization(facts: Facts) -> Findings:
    """Platforms that declare `quantization` serve no other methods."""
    allowed = facts.capability("quantization")
    if facts.quantization is not None and allowed is not None and facts.quantization not in allowed:
        name = facts.platform.name if facts.platform else ""
        yield Problem(
            f"--quantization {facts.quantization}: platform '{name}' serves {', '.join(allowed) or 'none'}; "
            "choose another model or --device."
        )


def r7_slow(facts: Facts) -> Findings:
    """A method without kernels of the platform runs on the reference operations."""
    if facts.quantization is not None and not facts.kernels:
        yield Warn(
            f"quantization '{facts.quantization}' runs with the slow reference operations: no kernels plugin fits; "
            "see `core plugins list --kind=kernels`."
        )


def r13_shards(facts: Facts) -> Findings:
    """A checkpoint cut for other ranks."""
    ranks = {match[1] for match in map(_SHARD.search, facts.files) if match}
    size = facts["tensor_parallel_size"]
    if facts["load_format"] == "sharded_state" and len(ranks) != size:
        yield Problem(
            f"--tensor-parallel-size {size}: the checkpoint is cut for {len(ranks)} ranks; use that number, or "
            "--load-format safetensors with a checkpoint that is not cut."
        )


def r42_loader(facts: Facts) -> Findings:
    """Loaders that declare `quantized` false deliver plain tensors only."""
    if (
        facts.loader is not None
        and facts.quantization is not None
        and facts.loader.capabilities.get("quantized") is False
    ):
        yield Problem(
            f"--load-format {facts.loader.name}: cannot load a checkpoint quantized with '{facts.quantization}'; "
            "choose --load-format auto."
        )


def r54_loader_settings(facts: Facts) -> Findings:
    """They belong to the chosen loader, which refuses what it does not know."""
    if facts["model_loader_extra_config"] and facts.loader is not None:
        why = f"goes to loader '{facts.loader.name}'"
        yield Derive("model_loader_extra_config", facts["model_loader_extra_config"], why, canonical=True)


def n15_bitsandbytes(facts: Facts) -> Findings:
    """A method with a loader of its name that reads its own files."""
    declared = facts.config.get("quantization_config")
    found = declared.get("quant_method") if isinstance(declared, Mapping) else None
    method = facts["quantization"] or found
    if method != "bitsandbytes" or "bitsandbytes" not in facts.loaders:
        return
    if facts["load_format"] == "auto":
        yield Derive("load_format", method, f"quantization is {method}")
    elif facts["load_format"] != method:
        yield Warn(
            f"--load-format {facts['load_format']}: the checkpoint is quantized with {method}, whose loader fits."
        )


def n15_gguf(facts: Facts) -> Findings:
    """A GGUF file says itself what reads it."""
    if facts.magic[:4] == b"GGUF" and facts.given("load_format") and facts["load_format"] not in ("auto", "gguf"):
        yield Warn(
            f"--load-format {facts['load_format']}: the model is a GGUF file; leave it out to have it read as one."
        )


def n16_speculator(facts: Facts) -> Findings:
    """A draft model that names the model it drafts for is replaced by it, and drafts."""
    config = facts.config.get("speculators_config")
    verifier = config.get("verifier") if isinstance(config, Mapping) else None
    target = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    if not isinstance(config, Mapping) or not target or "://" in str(facts["model"]):
        return
    proposals = config.get("proposal_methods")
    first = proposals[0] if isinstance(proposals, list) and proposals and isinstance(proposals[0], Mapping) else {}
    method = str(facts.config.get("speculators_model_type") or config.get("algorithm") or "")
    drafts: dict[str, Any] = {"method": method, "model": facts["model"]}
    if is_count(first.get("speculative_tokens")):
        drafts["num_speculative_tokens"] = first["speculative_tokens"]
    why = f"'{facts['model']}' is a speculator of it"
    yield Warn(f"'{facts['model']}' is a speculator: '{target}' is served, and it drafts.")
    yield Derive("speculative_config", drafts, f"'{facts['model']}' is a speculator")
    yield Derive("tokenizer", target, why)
    yield Derive("model", target, why, force=True)


def n17_offline(facts: Facts) -> Findings:
    """Without the network a hub name means its snapshot on this machine."""
    if facts.snapshot is not None and facts.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true"):
        yield Derive("model", facts.snapshot, "the hub is offline; this is its snapshot here", force=True)


def n28_tokens_only(facts: Facts) -> Findings:
    """Tokens in, tokens out."""
    if facts["tokens_only"]:
        yield Derive("skip_tokenizer_init", True, "tokens_only")


def n30_online(facts: Facts) -> Findings:
    """Weights that are quantized while they load are read on the host."""
    if facts["quantization"] == "inc":
        yield Derive("pt_load_map_location", "cpu", "quantization inc works on the host while weights load")


def n49_longest_answer(facts: Facts) -> Findings:
    """The generation configuration limits every request."""
    override = facts["override_generation_config"]
    generation = facts.manifest.generation if facts.manifest is not None else {}
    source = facts["generation_config"]
    names = ("max_new_tokens", "max_tokens", "max-tokens")
    mine = next((override[name] for name in names if override.get(name) is not None), None)
    value = mine if mine is not None else generation.get("max_new_tokens") if source == "auto" else None
    if mine is not None and not is_count(mine):
        yield Problem(f"--override-generation-config.max_new_tokens {mine!r}: expected an integer from 1.")
    elif is_count(value):
        where = "override_generation_config" if mine is not None else "the checkpoint's generation configuration"
        yield Derive("generation_config.max_new_tokens", value, f"{where}: the most that a request gets")


def c2_remote_code(facts: Facts) -> Findings:
    """No code of a checkpoint is run."""
    if facts["trust_remote_code"]:
        yield Warn("--trust-remote-code has no effect: no served architecture needs code from its checkpoint.")


def c3_revisions(facts: Facts) -> Findings:
    """A revision belongs to something."""
    for name, owner in (("revision", "model"), ("tokenizer_revision", "tokenizer")):
        if facts[name] is not None and facts[owner] is None:
            yield Problem(
                f"--{name.replace('_', '-')}: names a revision, but of nothing; name what it belongs to (--{owner})."
            )


def c4_served_names(facts: Facts) -> Findings:
    """A list of names swallows a model written behind it."""
    names = facts["served_model_name"] or []
    if facts["model"] is None and len(names) > 1 and ("/" in names[-1] or names[-1].endswith(".gguf")):
        yield Problem(
            f"--served-model-name {' '.join(names)}: no model is named, and '{names[-1]}' looks like one; "
            "write the model first: core serve MODEL --served-model-name NAME."
        )


RULES: tuple[Rule, ...] = (
    Rule("C2", ("trust_remote_code",), "warning", c2_remote_code),
    Rule("C3", ("revision", "tokenizer_revision", "tokenizer"), "error", c3_revisions),
    Rule("C4", ("served_model_name",), "error", c4_served_names),
    Rule("N28", ("tokens_only", "skip_tokenizer_init"), "derived", n28_tokens_only),
    Rule("N30", ("quantization", "pt_load_map_location"), "derived", n30_online),
    Rule("N15", ("quantization", "load_format"), "derived", n15_bitsandbytes, "reference"),
    Rule("N15", ("load_format",), "warning", n15_gguf, "reference"),
    Rule("N16", ("model", "tokenizer", "speculative_config"), "derived", n16_speculator, "reference"),
    Rule("N17", ("model",), "derived", n17_offline, "model"),
    Rule("R8", ("max_model_len",), "error", r8_too_long, "model"),
    Rule("R8", ("max_model_len",), "derived", r8_length, "model"),
    Rule("R10", ("disable_sliding_window", "max_model_len"), "derived", r10_window, "model"),
    Rule("N18", (), "derived", stage="model", instead="every layer has its own window in the model's description"),
    Rule("R13", ("tensor_parallel_size", "load_format"), "error", r13_shards, "model"),
    Rule("N49", ("override_generation_config", "generation_config"), "derived", n49_longest_answer, "model"),
    Rule("R7", ("quantization",), "error", r7_quantization, "plugins"),
    Rule("R7", ("quantization",), "warning", r7_slow, "plugins"),
    Rule("R42", ("load_format",), "error", r42_loader, "plugins"),
    Rule("R54", ("model_loader_extra_config",), "derived", r54_loader_settings, "plugins"),
)
