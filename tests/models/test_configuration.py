"""A configuration remembers what was read of it, and refuses values that cannot be."""

import pytest

from core.api.errors import UserError
from core_runtime.models.configuration import Configuration, positive
from core_runtime.models.unread import unread
from tests.torch_free import run_torch_free

TYPES = ("llama", "granite", "gemma3_text")


def test_sources_of_a_value_have_an_order() -> None:
    config = Configuration(
        {"n_embd": 32, "num_hidden_layers": None},
        defaults={"hidden_size": 768, "n_head": 12, "num_hidden_layers": 6},
        own_names={"hidden_size": ("n_embd",), "num_attention_heads": ("n_head",)},
    )
    assert config.positive("hidden_size") == 32
    assert config.positive("num_attention_heads") == 12
    assert config.positive("num_hidden_layers", 3) == 3, "null hides the default of the family"
    assert config.get("head_dim", 64) == 64
    assert "hidden_size" in config
    assert "num_attention_heads" not in config
    assert config.reads == {"n_embd", "num_hidden_layers"}


def test_nested_keys_are_remembered_with_their_path() -> None:
    values = {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 3}}
    config = Configuration(values)
    scaling = config.mapping("rope_scaling")
    assert scaling.number("factor") == 2.0
    assert scaling["rope_type"] == "linear"
    found = unread(config, TYPES, {})
    assert found.known == {"rope_scaling.beta_fast": 3}
    assert unread(config, TYPES, {"rope_scaling.beta_fast = 3": "a test"}).known == {}


def test_an_overlay_shares_the_record() -> None:
    config = Configuration({"block_ff_dim": 96, "hidden_size": 32})
    usual = config.overlaid({"intermediate_size": config.positive("block_ff_dim")})
    assert usual.positive("intermediate_size") == 96
    assert usual.positive("hidden_size") == 32
    assert unread(config, TYPES, {}).unknown == []


def test_unread_keys_are_neutral_known_or_unknown() -> None:
    config = Configuration(
        {
            "architectures": ["LlamaForCausalLM"],
            "attention_dropout": 0.3,
            "bos_token_id": 1,
            "rope_interleaved": False,
            "residual_multiplier": 0.22,
            "logits_scaling": None,
            "trained_by": "us",
        }
    )
    found = unread(config, TYPES, {})
    assert found.known == {"residual_multiplier": 0.22}
    assert found.unknown == ["trained_by"]


@pytest.mark.parametrize(
    ("accessor", "value", "expected"),
    [
        ("positive", 0, "a positive integer"),
        ("positive", True, "a positive integer"),
        ("positive", "8", "a positive integer"),
        ("positive", 10**30, "at most 1048576"),
        ("count", -1, "an integer from 0"),
        ("number", float("nan"), "a finite number"),
        ("number", 10**400, "a number from"),
        ("number", [1], "a finite number"),
        ("flag", 1, "true or false"),
        ("text", 5, "a string"),
        ("mapping", 5, "a mapping"),
    ],
)
def test_a_value_that_cannot_be_is_a_sentence(accessor: str, value: object, expected: str) -> None:
    config = Configuration({"hidden_size": value})
    with pytest.raises(UserError, match=f"hidden_size is .*expected {expected}.*--hf-overrides.hidden_size"):
        getattr(config, accessor)("hidden_size")


def test_lists_and_choices_name_what_they_take() -> None:
    config = Configuration({"layer_types": ["full", 3], "hidden_act": "sulu"})
    with pytest.raises(UserError, match="a list of str"):
        config.list_of("layer_types", str)
    with pytest.raises(UserError, match=r"'sulu'.*one of silu, gelu. Did you mean 'silu'"):
        config.choice("hidden_act", {"silu": 1, "gelu": 2})
    assert Configuration({}).list_of("layer_types", str) == []


def test_plain_mappings_work_as_before() -> None:
    assert positive({"hidden_size": 4}, "hidden_size") == 4


def test_reading_needs_neither_torch_nor_transformers() -> None:
    script = (
        "from core_runtime.models.defaults import family_defaults; import core_runtime.models.unread; "
        "assert family_defaults('llama').defaults['hidden_act'] == 'silu'; "
        "assert 'transformers' not in sys.modules"
    )
    run_torch_free(script)
