"""What the metadata of GGUF files mean, by architecture, and the sentences for those that cannot be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.api.errors import CheckpointError
from core_loaders.gguf.loader import GGUFLoader
from tests.loaders.test_gguf_architectures import unpacked
from tests.loaders.test_gguf_packed import Tensors, logits, rewritten

GATING = "deepseek2.expert_gating_func"
LONG = "phi3.rope.scaling.original_context_length"
NORM = "blk.0.attn_norm_2.weight"


def changed(
    name: str, folder: Path, metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray | None] | None = None
) -> Path:
    """A file of `tests/checkpoints/gguf` with other metadata and tensors; None takes one away."""

    def change(found: Tensors) -> Tensors:
        both = {**found, **(tensors or {})}
        return {key: value for key, value in both.items() if value is not None}

    return rewritten(unpacked(name, folder), folder / "changed.gguf", change, metadata=metadata)


@pytest.mark.parametrize(
    ("name", "metadata", "tensors", "expected"),
    [
        (
            "granite",
            {"granite.interleave_moe_layer_step": 2},
            {},
            "interleave_moe_layer_step' is 2, which is not understood",
        ),
        ("lfm2", {"lfm2.attention.head_count_kv": [2, 4, 0]}, {}, "expected one number for all layers"),
        ("lfm2", {"lfm2.attention.head_count_kv": [2, 0]}, {}, "has 2 entries, expected 3"),
        ("deepseek2", {GATING: 3}, {}, "is 3; expected 1 or 2"),
        ("deepseek3", {GATING: 1}, {}, "biases of experts with scores by softmax"),
        ("deepseek2", {"deepseek2.attention.key_length_mla": 8}, {}, "heads of 8 numbers, of which 8 rotate"),
        ("deepseek2", {"deepseek2.expert_used_count": 9}, {}, "num_experts_per_tok is 9; the model has 4 experts"),
        ("phi3-long", {}, {"rope_factors_short.weight": None}, "'rope_factors_short.weight' is missing"),
        (
            "phi3-long",
            {},
            {"rope_factors_long.weight": np.full(8, np.nan, np.float32)},
            "numbers that are not positive",
        ),
        ("phi3-long", {LONG: None}, {}, "original_context_length' is missing"),
        ("llama-yarn", {"llama.rope.scaling.original_context_length": None}, {}, "original_context_length' is missing"),
        (
            "falcon-40b",
            {},
            {NORM: None, NORM.replace("weight", "bias"): None},
            "2 key-value heads and one norm a layer",
        ),
        ("olmo", {"olmo.attention.layer_norm_epsilon": 1e-3}, {}, "another epsilon than 1e-05"),
        ("mpt", {"mpt.attention.max_alibi_bias": 4.0}, {}, "max_alibi_bias' is not 8"),
        ("bloom", {"bloom.feed_forward_length": 128}, {}, "MLPs of 128 inner numbers; expected 256"),
        ("mamba2", {"mamba2.ssm.time_step_rank": 3}, {}, "128 channels, which 3 heads cannot share evenly"),
        ("qwen2", {}, {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}, None),
    ],
)
def test_what_cannot_be_is_a_sentence_with_the_file(name, metadata, tensors, expected, tmp_path: Path) -> None:
    path = changed(name, tmp_path, metadata, tensors)
    if expected is None:  # a known name that the model has no use for: the check of tensors refuses it
        assert "model.layers.0.self_attn.sinks" in GGUFLoader().resolve(str(path)).tensors
        return
    with pytest.raises(CheckpointError, match=expected) as caught:
        GGUFLoader().resolve(str(path))
    assert str(path) in str(caught.value)


def test_older_files_lack_the_sizes_of_experts(tmp_path: Path) -> None:
    older = {"qwen2moe.expert_feed_forward_length": None, "qwen2moe.expert_shared_feed_forward_length": None}
    path = changed("qwen2moe", tmp_path, older)
    assert np.array_equal(logits(path), logits(unpacked("qwen2moe", tmp_path)))


def test_layers_that_draft_are_left_out(tmp_path: Path) -> None:
    joining = np.zeros((64, 128), np.float32)
    drafting = {"blk.2.nextn.eh_proj.weight": joining, "blk.2.attn_norm.weight": np.ones(64, np.float32)}
    path = changed("glm4moe", tmp_path, {"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}, drafting)
    assert np.array_equal(logits(path), logits(unpacked("glm4moe", tmp_path)))


def test_zeros_that_say_none_are_none(tmp_path: Path) -> None:
    path = changed("granite", tmp_path, {"granite.logit_scale": 0.0, "granite.attention.scale": 0.0})
    config = GGUFLoader().resolve(str(path)).config
    assert (config["logits_scaling"], config["attention_multiplier"]) == (1.0, 0.25)


def test_windows_are_by_list_or_by_number(tmp_path: Path) -> None:
    listed = changed("exaone4", tmp_path, {"exaone4.attention.sliding_window_pattern": [True, False, False, True]})
    kinds = GGUFLoader().resolve(str(listed)).config["layer_types"]
    assert [kind[:4] for kind in kinds] == ["slid", "full", "full", "slid"]
    counted = changed("exaone4", tmp_path, {"exaone4.attention.sliding_window_pattern": 2})
    kinds = GGUFLoader().resolve(str(counted)).config["layer_types"]
    assert [kind[:4] for kind in kinds] == ["slid", "full", "slid", "full"]
