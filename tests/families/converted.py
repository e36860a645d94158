"""Checkpoints of a llama of transformers under other names and layouts.

Owns: the steps from one form to another, and the comparison. Never does: know a family. Called by: the tests of rows whose
code transformers does not have.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.families.comparison import distances
from tests.families.expected import TOLERANCE
from tests.families.harness import Harness
from tests.families.oracle import Reference, randomize

Config = dict[str, Any]
Tensors = dict[str, Tensor]
Converter = Callable[[Config, Tensors], None]

SIZES: Config = {
    "vocab_size": 263, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 6, "max_position_embeddings": 256,
}  # fmt: skip
IDS = list(range(7, 40))


def renamed(tensors: Tensors, *pairs: tuple[str, str]) -> None:
    """Replace the first pattern in each name by the second, one pair after another."""
    for name in list(tensors):
        new = name
        for pattern, to in pairs:
            new = re.sub(pattern, to, new)
        tensors[new] = tensors.pop(name)


def joined(tensors: Tensors, to: str, join: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """One tensor of queries, keys and values for each layer."""
    for name in [name for name in tensors if "q_proj" in name]:
        parts = [tensors.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[name.replace("q_proj", to)] = join(*parts)


def write(path: Path, config: Config, tensors: Tensors) -> None:
    """A checkpoint."""
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")


def llama(**changes: Any) -> LlamaForCausalLM:
    """A tiny one with random weights."""
    torch.manual_seed(3)
    config = LlamaConfig(**{**SIZES, **changes}, attn_implementation="eager")
    model = LlamaForCausalLM(config)
    randomize(model)
    return model.eval()


def assert_equal(path: Path, config: Config, model: LlamaForCausalLM, convert: Converter, **inputs: Tensor) -> None:
    """The converted model gives the model's own logits."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([IDS]), use_cache=False, **inputs).logits
    tensors = dict(model.state_dict())
    convert(config, tensors)
    write(path, config, tensors)
    found = distances(Harness(path), Reference(path, [IDS], [logits[0]], [], [], encodes=False))
    assert max(found.values()) < TOLERANCE, found
