"""The work of a token, compared with the modules of transformers and with what the memory plan stores."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from core_config.resolve import resolve
from tests.tiny_models import save_checkpoint


def work_of(path, **arguments):
    resolution = resolve({"model": str(path), **arguments}, context="serve")
    return resolution.work(), resolution


def linears(model):
    """Numbers of every matrix that transformers multiplies with, by module name."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            found[name] = module.weight.numel()
    return found


@pytest.mark.parametrize("tied", [False, True])
def test_a_token_is_multiplied_with_the_matrices_that_transformers_has(tied, tmp_path):
    path = save_checkpoint(tmp_path, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_pretrained(path)
    named = linears(model)
    work, resolution = work_of(path)
    assert work.head.numbers == named.pop("lm_head")
    assert work.blocks.numbers == sum(named.values())
    assert work.experts.numbers == 0 == work.num_experts
    assert work.weights.nbytes == 2 * work.weights.numbers  # bfloat16
    embedding = 0 if tied else model.get_input_embeddings().weight.numel()
    assert resolution.memory.weights == pytest.approx(
        work.weights.nbytes + 2 * embedding, rel=0.05
    )  # stored, not read; kernels pad rows
    config = model.config
    head = config.hidden_size // config.num_attention_heads
    assert (
        work.key_bytes(10)
        == 10 * resolution.memory.kv_per_token
        == 10 * config.num_hidden_layers * 4 * head * (config.num_key_value_heads)
    )


def test_experts_count_as_often_as_a_token_takes_them(tmp_path):
    path = save_checkpoint(tmp_path, "mixtral")
    model = AutoModelForCausalLM.from_pretrained(path)
    config = model.config
    one = 3 * config.hidden_size * config.intermediate_size * config.num_hidden_layers
    work, _ = work_of(path)
    assert (work.num_experts, work.num_choices) == (config.num_local_experts, config.num_experts_per_tok)
    assert work.one_expert.numbers == one and work.experts.numbers == config.num_experts_per_tok * one


def test_lighter_keys_and_weights_are_fewer_bytes_of_the_same_numbers(tmp_path):
    path = save_checkpoint(tmp_path)
    plain, _ = work_of(path)
    keys, _ = work_of(path, kv_cache_dtype="fp8")
    assert keys.key_bytes(100) == plain.key_bytes(100) / 2 and keys.weights == plain.weights
    weights, _ = work_of(path, quantization="int8")
    assert weights.weights.numbers == plain.weights.numbers and weights.weights.nbytes < 0.9 * plain.weights.nbytes


def test_prompts_read_what_lies_before_each_token(tmp_path):
    work, _ = work_of(save_checkpoint(tmp_path, "gemma3") if False else save_checkpoint(tmp_path))
    matrices = work.blocks.numbers
    keys = sum(layer.numbers for layer in work.keys)
    assert work.prompt_numbers(5) == 5 * matrices + work.head.numbers + keys * (1 + 2 + 3 + 4 + 5)
