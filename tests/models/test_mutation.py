"""Each key of each family's configuration is changed: our logits follow those of transformers, or the change is refused."""

from collections import Counter

import pytest

from core_runtime.models.families import families
from tests.families.architectures import variants
from tests.models.mutations import Subject

MODEL_TYPES = [model_type for family in families() for model_type in family.model_types if variants(model_type)]
QUICK = ("llama",)
"""Whose keys are changed in every run of the suite, each to one other value."""
KNOWN: dict[tuple[str, str], str] = {
    ("kimi_linear", "n_group"): "the file has it as num_expert_group, too",
    ("axk2", "num_experts_per_tok"): "outside of the best groups scores are 0 there, more than negative ones inside",
    ("kimi_linear", "norm_topk_prob"): "the file has it as moe_renormalize, too",
}
"""Changes in which we differ on purpose, and why."""


def mutate(model_type: str, most: int) -> Counter[str]:
    """How often each outcome came about; fails with a list of the wrong ones."""
    subject = Subject(model_type)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for key, value in subject.changes(most):
        outcome = subject.outcome(key, value)
        kind = outcome.kind
        if kind == "wrong" and (model_type, key) in KNOWN:
            kind = "known"
        counts[kind] += 1
        if kind == "wrong":
            wrong.append(f"{key} = {value}: {outcome.detail}")
    assert not wrong, f"{model_type}: {dict(counts)}\n" + "\n".join(wrong)
    return counts


@pytest.mark.parametrize("model_type", QUICK)
def test_a_changed_key_moves_the_logits_as_it_moves_those_of_transformers(model_type: str) -> None:
    counts = mutate(model_type, most=1)
    assert counts["equal"] > 5
    assert counts["refused"] > 0


@pytest.mark.models
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_change_of_every_key(model_type: str) -> None:
    counts = mutate(model_type, most=8)
    print(f"{model_type}: {dict(counts)}")
    assert counts["equal"] > 0
