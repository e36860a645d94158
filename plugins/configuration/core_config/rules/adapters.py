"""Rules about adapters (LoRA).

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from pathlib import Path

from core.args.schema import flag_of, schema
from core_config.adapters import DEFAULT_NAME, lora_modules, media_modules
from core_config.arguments.groups.adapters import NO_EFFECT
from core_config.media import processed, transcribes, why_not, why_not_pooled
from core_config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn
from core_media.config import MODALITIES, NOUNS


def settings_need_the_switch(facts: Facts) -> Findings:
    """Every other argument about adapters has an effect with --enable-lora only."""
    groups = ("lora", "lora_serving")
    names = [name for name, field in schema().fields.items() if field.group in groups and name != "enable_lora"]
    given = [flag_of(name) for name in names if facts.given(name)]
    if given and not facts["enable_lora"]:
        yield Warn(f"{', '.join(given)}: no effect without --enable-lora.")


def some_switches_change_nothing(facts: Facts) -> Findings:
    """One division over ranks, recordings for any number of adapters and a reader of every form make some switches idle."""
    given = [flag_of(name) for name in NO_EFFECT if facts[name]]
    if facts["max_lora_cls_labels"] is not None:
        given.append("--max-lora-cls-labels")
    if facts["enable_lora"] and given:
        yield Warn(f"{', '.join(given)}: no effect here; `core serve --help=lora` says why.")


def the_canary_probes_those_of_the_start(facts: Facts) -> Findings:
    """The canary compares what adapters compute that are in memory before the first request."""
    named = facts["lora_modules"] is not None or facts["default_mm_loras"]
    if facts["enable_lora"] and facts["state_canary"] is not None and not named:
        yield Warn(
            "--state-canary: adapters that are loaded later are not probed; name those that should be with --lora-modules."
        )


def modules_are_understood(facts: Facts) -> Findings:
    """Every adapter of --lora-modules has a name and a path of its own, and no name is the model's."""
    modules, problems = lora_modules(facts["lora_modules"])
    yield from map(Problem, problems)
    taken = {*(facts["served_model_name"] or ()), facts["model"]}
    if facts["qlora_adapter_name_or_path"] is not None:
        taken.add(DEFAULT_NAME)
    for module in modules:
        if module.name in taken:
            yield Problem(f"--lora-modules {module.name}: the name is taken by the model; choose another one.")
        if facts["enable_lora"] and not Path(module.path).exists():
            yield Problem(f"--lora-modules {module.name}={module.path}: there is no such file or directory.")


def media_have_adapters_of_their_own(facts: Facts) -> Findings:
    """Every adapter of --default-mm-loras is one of a modality, and its name is no other adapter's."""
    given = facts["default_mm_loras"]
    modules, _ = lora_modules(facts["lora_modules"])
    taken = {*(facts["served_model_name"] or ()), facts["model"], *(module.name for module in modules)}
    for name, path in given.items():
        if name not in MODALITIES:
            yield Problem(f"--default-mm-loras {name}: expected one of {', '.join(MODALITIES)}.")
        elif not isinstance(path, str) or not path:
            yield Problem(f"--default-mm-loras {name}: {path!r} is no path.")
        elif name in taken:
            yield Problem(
                f"--default-mm-loras {name}: the name is taken by a model or adapter; give that another name."
            )
        elif facts["enable_lora"] and not Path(path).expanduser().exists():
            yield Problem(f"--default-mm-loras {name}={path}: there is no such file or directory.")
    if given and facts["qlora_adapter_name_or_path"] is not None:
        yield Problem(
            "--default-mm-loras and --qlora-adapter-name-or-path both say which adapter a request has that names the model; "
            "give one of them."
        )


def media_with_adapters_are_served(facts: Facts) -> Findings:
    """--default-mm-loras is for modalities that prompts of the model may have."""
    if facts.manifest is None or not facts["enable_lora"]:
        return
    reason = why_not(facts.settings, str(facts["model"]), facts.manifest)
    if transcribes(facts.manifest):
        reason = "the model transcribes sounds, and has no prompts with media"
    served = [] if reason else processed(facts.settings, facts.manifest)
    for name in facts["default_mm_loras"]:
        if name in MODALITIES and name not in served:
            why = reason or f"no {NOUNS[name]}s of the model are served"
            yield Problem(f"--default-mm-loras {name}: {why}; leave it out.")


def towers_with_adapters_are_here(facts: Facts) -> Findings:
    """--enable-tower-connector-lora is for a tower that is loaded beside the process that reads adapters."""
    if facts.manifest is None or not facts["enable_lora"] or not facts["enable_tower_connector_lora"]:
        return
    reason = why_not(facts.settings, str(facts["model"]), facts.manifest) or why_not_pooled(
        facts.settings, facts.pooling
    )
    if transcribes(facts.manifest):
        reason = "the model transcribes sounds, and adapters change no encoder"
    ranks = facts["tensor_parallel_size"] * facts["pipeline_parallel_size"]
    if reason:
        yield Warn(f"--enable-tower-connector-lora: no effect, since {reason}.")
    elif ranks > 1:
        yield Problem(
            f"--enable-tower-connector-lora: the model has {ranks} ranks, which read their shares of adapters in processes "
            "without the tower; serve it with one, or leave the argument out."
        )


def memory_holds_a_step(facts: Facts) -> Findings:
    """As many adapters are kept in memory as a step may have different ones."""
    most, kept = facts["max_loras"], facts["max_cpu_loras"]
    modules, _ = lora_modules(facts["lora_modules"])
    if kept and kept < most:
        yield Problem(f"--max-cpu-loras {kept}: fewer than --max-loras {most}; raise the one or lower the other.")
    elif facts["enable_lora"] and not kept:
        named = "--lora-modules names"
        if facts["default_mm_loras"]:
            named = "--lora-modules and --default-mm-loras name"
        count = max(most, len(modules) + len(media_modules(facts["default_mm_loras"])))
        # 0 counts as unset, so that it is replaced without a warning.
        yield Derive("max_cpu_loras", count, f"as many as --max-loras, and as {named}", force=True)


def drafts_of_adapters_fit_the_budget(facts: Facts) -> Findings:
    """With adapters, a step has room for all sequences with all their drafts."""
    budget, seqs, drafts = facts["max_num_batched_tokens"], facts["max_num_seqs"], facts.num_drafts
    if facts["enable_lora"] and drafts and budget < seqs * (drafts + 1):
        yield Problem(
            f"--enable-lora with {drafts} drafts: {seqs} sequences (--max-num-seqs) need {seqs * (drafts + 1)} tokens a step, "
            f"but --max-num-batched-tokens is {budget}; raise it, or lower one of the others."
        )


def updating_needs_a_directory(facts: Facts) -> Findings:
    """Paths of requests lie below a directory, which must be named, unless adapters come from shared memory."""
    has_source = facts["lora_directory"] is not None or facts["weight_transfer_config"] is not None
    if facts["enable_lora"] and facts["allow_runtime_lora_updating"] and not has_source:
        yield Problem(
            "--allow-runtime-lora-updating: say where adapters may lie; give --lora-directory, or --weight-transfer-config for "
            "those in shared memory."
        )
    directory = facts["lora_directory"]
    if facts["enable_lora"] and directory is not None and not Path(directory).expanduser().is_dir():
        yield Problem(f"--lora-directory {directory}: there is no such directory.")


def updating_is_for_friends(facts: Facts) -> Findings:
    """A client that loads adapters controls the server's answers, so it should need a key."""
    has_key = facts["api_key"] or facts["admin_api_key"]
    if facts["enable_lora"] and facts["allow_runtime_lora_updating"] and not has_key and not facts.is_headless:
        yield Warn(
            "--allow-runtime-lora-updating: this server requires no key, so any client that reaches it may load adapters; give "
            "--api-key or --admin-api-key."
        )


RULES: tuple[Rule, ...] = (
    Rule(settings_need_the_switch),
    Rule(some_switches_change_nothing),
    Rule(the_canary_probes_those_of_the_start),
    Rule(modules_are_understood),
    Rule(media_have_adapters_of_their_own),
    Rule(media_with_adapters_are_served, "model"),
    Rule(towers_with_adapters_are_here, "model"),
    Rule(memory_holds_a_step),
    Rule(updating_needs_a_directory),
    Rule(updating_is_for_friends),
    Rule(drafts_of_adapters_fit_the_budget, "model"),
)
