"""Rules about experts that ranks share.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from core.args.schema import flag_of
from core_config.experts import OLDER, balance_keys
from core_config.rules.rule import Facts, Findings, Problem, Rule, Warn
from core_runtime.specs.decoder_spec import DecoderSpec


def experts_are_shared_by_ranks(facts: Facts) -> Findings:
    """Where experts lie is a question for several ranks of the same layers."""
    if facts["enable_expert_parallel"] and facts["pipeline_parallel_size"] > 1:
        yield Problem(
            "--enable-expert-parallel: places of experts are chosen for all layers together, and stages hold different ones; "
            "leave --pipeline-parallel-size out."
        )
        return
    if facts["enable_expert_parallel"] and facts["tensor_parallel_size"] == 1:
        yield Warn("--enable-expert-parallel: no effect with one rank; --tensor-parallel-size sets their number.")


def placement_needs_expert_parallelism(facts: Facts) -> Findings:
    """Other arguments about experts belong to --enable-expert-parallel."""
    if facts["enable_expert_parallel"]:
        return
    if facts["enable_eplb"]:
        yield Problem("--enable-eplb: experts move between ranks with --enable-expert-parallel alone; give it too.")
    if facts.given("expert_placement_strategy"):
        yield Warn("--expert-placement-strategy: no effect without --enable-expert-parallel.")


def balance_needs_moves(facts: Facts) -> Findings:
    """The keys of the balance belong to --enable-eplb."""
    if facts["enable_eplb"]:
        return
    given = [flag_of(name) for name in ("eplb_config", *OLDER) if facts.given(name)]
    if balance_keys(facts.settings)["num_redundant_experts"]:
        yield Problem(f"{', '.join(given)}: redundant experts are chosen by --enable-eplb; give it too.")
    elif given:
        yield Warn(f"{', '.join(given)}: no effect without --enable-eplb.")


def balance_has_one_spelling(facts: Facts) -> Findings:
    """A key of the balance is given under one of its names."""
    keys = facts.settings.mapping("eplb_config")
    for older, key in OLDER.items():
        if facts[older] is not None and keys.get(key, facts[older]) != facts[older]:
            newer = flag_of(f"eplb_config.{key}")
            yield Problem(f"{flag_of(older)} {facts[older]}: {newer} says {keys[key]}; leave the older one out.")


def outputs_tell_what_there_is(facts: Facts) -> Findings:
    """Only a model of the engine's own layers, with experts and all of them here, tells which it chose."""
    if not facts["enable_return_routed_experts"] or facts.spec is None:
        return
    flag = "--enable-return-routed-experts"
    if not isinstance(facts.spec, DecoderSpec):
        yield Problem(f"{flag}: the layers of transformers do not tell their experts; leave it out.")
    elif not any(block.experts is not None for block in facts.spec.blocks):
        yield Problem(f"{flag}: the model has no experts; leave it out.")
    if facts["pipeline_parallel_size"] > 1:
        yield Problem(
            f"{flag}: each stage has the choices of its own layers alone; leave --pipeline-parallel-size out."
        )


def model_has_experts(facts: Facts) -> Findings:
    """Expert parallelism needs a model with experts."""
    if not facts["enable_expert_parallel"] or not isinstance(facts.spec, DecoderSpec):
        return
    if not any(block.experts is not None for block in facts.spec.blocks):
        yield Warn("--enable-expert-parallel: no effect, since the model has no experts.")


RULES: tuple[Rule, ...] = (
    Rule(experts_are_shared_by_ranks),
    Rule(placement_needs_expert_parallelism),
    Rule(balance_has_one_spelling),
    Rule(balance_needs_moves),
    Rule(model_has_experts, "model"),
    Rule(outputs_tell_what_there_is, "model"),
)
