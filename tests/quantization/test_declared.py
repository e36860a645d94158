"""Where checkpoints say how they are packed, which names these declarations mean, and how small integers lie in words."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.api.errors import UserError
from core.api.specs import ACTIVATIONS
from core.plugin.capabilities import roundings_of
from core.plugin.registry import PluginRegistry
from core_config.selection import select_quantization
from core_config.stages.quantization_names import ALIASES, METHOD_NAMES
from core_loaders.directory import read_directory
from core_platforms.cuda import manifest as cuda
from core_quantization.declared.arguments import activation_for
from core_quantization.declared.bits import to_nibbles, unpack_stream, unpack_words
from core_quantization.declared.part_format import OFFERED
from core_quantization.declared.patterns import any_means, is_meant
from core_runtime.specs.checkpoint import CheckpointFacts
from core_runtime.specs.declaration import find_declaration


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"compression_config": {"config_groups": {}, "quant_method": "sparseml"}}, "sparseml"),
        ({"compression_config": {"config_groups": {"group_0": {}}}}, "compressed-tensors"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
    ],
)
def test_declarations_are_found_in_the_configuration(config: dict[str, Any], method: str) -> None:
    declaration = find_declaration(config)
    assert declaration is not None
    assert declaration["quant_method"] == method


def test_a_plain_configuration_declares_nothing() -> None:
    assert find_declaration({"quantization_config": None, "text_config": {}}) is None


@pytest.mark.parametrize(
    ("name", "content", "method"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128}, "gptq"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128}, "awq"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "modelopt"),
    ],
)
def test_declarations_are_found_in_files_of_their_own(
    name: str, content: dict[str, Any], method: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / name).write_text(json.dumps(content))
    found = read_directory(str(tmp_path)).config["quantization_config"]
    assert found == {**content, "quant_method": method}


def facts(method: str) -> CheckpointFacts:
    return CheckpointFacts("x", "safetensors", "llama", quantization=method)


def test_other_names_are_told_and_followed() -> None:
    registry = PluginRegistry()
    choice = select_quantization(registry, "ptpc_fp8", CheckpointFacts("x", "safetensors", "llama"), METHOD_NAMES)
    assert choice.selection.chosen == ("fp8",)
    assert choice.selection.why == "--quantization ptpc_fp8, another name of fp8"
    with pytest.raises(UserError, match=r"declares 'BitBLAS': .*serve the GPTQ checkpoint"):
        select_quantization(registry, None, facts("BitBLAS"), METHOD_NAMES)
    with pytest.raises(UserError, match="declares 'fbgemm_fp8', another name of fp8; leave the argument out"):
        select_quantization(registry, "nf4", facts("fbgemm_fp8"), METHOD_NAMES)


@pytest.mark.parametrize(
    ("tool", "declared", "own"), [("ipex", "awq", "awq"), ("ipex", "gptq", "gptq"), ("inc", "gptq", "gptq")]
)
def test_names_of_tools_mean_what_the_checkpoint_declares(tool: str, declared: str, own: str) -> None:
    own_keys = {"version": "gemm", "zero_point": True} if declared == "awq" else {"desc_act": False, "sym": True}
    config = {"quant_method": declared, "bits": 4, "group_size": 32, **own_keys}
    known = CheckpointFacts("x", "safetensors", "llama", quantization=declared, declaration=config)
    choice = select_quantization(PluginRegistry(), tool, known, METHOD_NAMES)
    assert choice.selection.chosen == (own,)
    assert choice.selection.why == f"--quantization {tool}, which means what the checkpoint declares: {own}"


@pytest.mark.parametrize(("tool", "words"), [("ipex", "leave the argument out"), ("inc", "int8 or --quantization fp8")])
def test_names_of_tools_say_what_to_do_with_a_plain_checkpoint(tool: str, words: str) -> None:
    plain = CheckpointFacts("x", "safetensors", "llama")
    with pytest.raises(UserError, match=f"--quantization {tool}: the checkpoint declares no method; .*{words}"):
        select_quantization(PluginRegistry(), tool, plain, METHOD_NAMES)
    assert METHOD_NAMES.own_name("petit_nvfp4") == "modelopt"


BY_WORD = {other: own for other, own in ALIASES.items() if own in ("fp8", "int8", "modelopt")}
"""Other names of methods that look at no more than the word in the declaration."""


@pytest.mark.parametrize(("other", "own"), BY_WORD.items())
def test_a_checkpoint_may_declare_another_name(other: str, own: str) -> None:
    choice = select_quantization(PluginRegistry(), None, facts(other), METHOD_NAMES)
    assert choice.selection.chosen == (own,)


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("lm_head", False),
        ("down_proj", True),
        ("model.layers.1", True),
        ("layers.11", False),
        ("re:.*down.*", True),
        ("re:down", False),
        ("*.mlp.*", True),
        ("model.layers.1.mlp.down_proj", True),
    ],
)
def test_patterns(pattern: str, meant: bool) -> None:
    assert is_meant("model.layers.1.mlp.down_proj", pattern) is meant


def test_a_fused_module_is_meant_when_all_its_parts_are() -> None:
    module = "model.layers.0.self_attn.qkv_proj"
    assert any_means(module, ["q_proj", "k_proj", "v_proj"])
    assert not any_means(module, ["q_proj", "k_proj"])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_integers_come_out_of_words_as_they_went_in(bits: int) -> None:
    count = 64
    values = np.random.default_rng(bits).integers(0, 1 << bits, (3, count)).astype(np.uint8)
    stream = np.unpackbits(values[..., None], axis=-1, bitorder="little")[..., :bits].reshape(3, -1)
    words = torch.from_numpy(np.packbits(stream, axis=-1, bitorder="little").view(np.int32).copy())
    assert np.array_equal(unpack_stream(words, bits, count).numpy(), values)
    if 32 % bits == 0:
        assert np.array_equal(unpack_words(words, bits).numpy(), values)
    if bits == 4:
        pairs = to_nibbles(torch.from_numpy(values))
        assert torch.equal(pairs & 15, torch.from_numpy(values[:, ::2]))


def test_an_order_moves_the_integers_of_each_word() -> None:
    words = torch.tensor([[0x76543210]], dtype=torch.int32)
    assert unpack_words(words, 4, (0, 4, 1, 5, 2, 6, 3, 7)).tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]


def test_inputs_have_the_precision_that_is_asked_for_where_a_format_has_it() -> None:
    assert activation_for("auto", ("int8", "none"), "bfloat16", ACTIVATIONS) == "int8"
    assert activation_for("auto", ("int8", "none"), "float32", ACTIVATIONS) == "none"
    assert activation_for("bf16", ("int8", "none"), "bfloat16", ACTIVATIONS) is None


def test_inputs_are_rounded_by_themselves_only_where_a_device_gains() -> None:
    """A GPU multiplies integers of two rows, and has nothing of groups of inputs; whoever asks for them gets them."""
    on_gpu = roundings_of(cuda.core_spec().capabilities)
    assert activation_for("auto", OFFERED["int4_groups"], "bfloat16", on_gpu) == "none"
    assert activation_for("auto", OFFERED["int8_channel"], "bfloat16", on_gpu) == "int8_row"
    assert activation_for("auto", OFFERED["mxfp4"], "bfloat16", on_gpu) == "bf16"
    assert activation_for("int8", OFFERED["int4_groups"], "bfloat16", on_gpu) == "int8"
