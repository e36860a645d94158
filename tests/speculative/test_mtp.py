"""Layers for multi-token prediction of each published layout, against plain torch around transformers' own blocks."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config

from core.api.errors import UserError
from core.plugin.registry import PluginRegistry
from core_speculative.mtp.layout import mtp_spec
from core_speculative.mtp.rows import ROWS
from tests.speculative.draft_harness import DraftHarness, context_of, target_harness
from tests.speculative.mtp_cases import CASES, SHAPE, TOKENS, made
from tests.speculative.mtp_published import OTHERS


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
@torch.no_grad()
def test_drafts_of_a_models_own_layer(name: str, tmp_path: Path) -> None:
    model = OTHERS[name](tmp_path) if name in OTHERS else made(name, tmp_path)
    config, state = model.config, model.state
    draft = mtp_spec(context_of(config, config, state, has_checkpoint=False))
    whole = target_harness(config, state, draft.taps)
    found, logits = DraftHarness(whole, draft, config, state, in_target=True).drafts(TOKENS, 3, (4, 5))
    out = model.target(torch.tensor([TOKENS[:-1]]), output_hidden_states=True)
    expected, wanted = model.oracle.drafts(TOKENS, out.hidden_states[-1][0], 3)
    assert found == expected
    torch.testing.assert_close(logits, wanted, atol=5e-4, rtol=5e-4)


def test_the_names_of_other_programs_mean_the_same() -> None:
    names = [entry.name for entry in entry_points(group="core.speculative") if ".mtp." in entry.value]
    assert len(names) > 8
    registry = PluginRegistry()
    for name in names:
        assert registry.get("speculative", name).spec.name == "mtp"


def test_every_layout_has_a_case() -> None:
    served = {family for row in ROWS for family in row.families}
    missing = served - {"qwen2", *CASES, *OTHERS}
    assert missing == {"glm4_moe_lite", "exaone_moe", "qwen3_5", "qwen3_5_moe"}, "whose layout others have"


def context(
    said: dict[str, Any], tensors: tuple[str, ...], family: type[PretrainedConfig] = Qwen2Config, *, named: bool = False
) -> Any:
    config = {**family(**SHAPE).to_dict(), **said}
    return context_of(config, config, dict.fromkeys(tensors), has_checkpoint=named)  # type: ignore[arg-type]


INPUT_PROJ = "model.mtp_layers.0.input_proj.weight"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (context({}, (INPUT_PROJ,)), "num_nextn_predict_layers is None"),
        (
            context({"num_nextn_predict_layers": 1}, ("lm_head.weight",)),
            "no tensors of 'model.mtp_layers.0.input_proj'",
        ),
        (context({"num_nextn_predict_layers": 1}, (INPUT_PROJ,), LlamaConfig), "family 'llama' have no layer for it"),
        (context({"num_nextn_predict_layers": 1}, (INPUT_PROJ,), named=True), "leave 'model' out"),
    ],
)
def test_a_model_without_such_a_layer_is_refused_by_name(asked: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        mtp_spec(asked)


@pytest.mark.parametrize(
    ("name", "changed", "sentence"),
    [
        (
            "mellum",
            {"mtp_layer_types": ["chunked_attention"]},
            "mtp_layer_types is .*expected a list of full_attention, sl",
        ),
        ("mellum", {"layer_types": ["full_attention"] * 2}, "no layer of the model has a window"),
        ("longcat_flash", {"num_nextn_predict_layers": 0}, "num_nextn_predict_layers is 0 in its configuration"),
        ("pangu_ultra_moe", {"num_mtp_layers": 0}, "num_mtp_layers is 0 in its configuration"),
    ],
)
def test_a_layer_that_the_configuration_does_not_have_is_refused(
    name: str, changed: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    model = OTHERS[name](tmp_path) if name in OTHERS else made(name, tmp_path)
    config = {**model.config, **changed}
    with pytest.raises(UserError, match=sentence):
        mtp_spec(context_of(config, config, model.state, has_checkpoint=False))


def test_a_refusal_names_what_drafts_instead() -> None:
    with pytest.raises(UserError, match=r"longcat_flash, .*step3p5\. Choose ngram, suffix, a draft_model, or a head"):
        mtp_spec(context({"num_nextn_predict_layers": 1}, (INPUT_PROJ,), LlamaConfig))


def test_the_draft_reads_what_the_target_leaves() -> None:
    """A model's own loading goes on ignoring these tensors, and the draft ignores the model's."""
    spec = mtp_spec(context({"num_nextn_predict_layers": 1}, (INPUT_PROJ,)))
    patterns = dict(spec.names)
    assert patterns["model.mtp_layers.0.input_proj.*"] == "input.joined.*"
    assert msgspec.structs.asdict(spec)["shares_embedding"] and spec.shares_head
