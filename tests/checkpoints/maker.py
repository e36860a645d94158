"""What the makers of the kept checkpoints share: shape, random models, their tokenizer, digests, and the command line.

Owns: nothing of one tool. Never does: import the engine, or a package besides torch, transformers, tokenizers and safetensors'
own dependencies: each `make.py` runs in the environment of its tool. Called by: `make.py` of the folders beside this file.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "vocab_size": 128, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
UNTIED = {**SHAPE, "tie_word_embeddings": False}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}


def random_model(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model with weights three times as wide as transformers draws them, so that logits differ; rounded to dtype."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    return model.to(dtype)


def random_bfloat16_model(config: Any, seed: int) -> PreTrainedModel:
    """Return a model whose matrices are drawn in bfloat16 and eight times as wide as transformers draws them."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    return model


def save_tokenizer(directory: Path) -> None:
    """Write a tokenizer with one word an entry, for tools that need one. Kept checkpoints have none: prompts are ids."""
    words = ["<pad>", "<s>", "</s>", "<unk>"]
    for number in range(len(words), SHAPE["vocab_size"]):
        words.append(f"w{number}")
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials).save_pretrained(directory)


def copy_files(names: Iterable[str], source: Path, target: Path) -> None:
    """Copy some files of a saved model into the folder of the kept checkpoint."""
    target.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(source / name, target / name)


def keep_files(names: Iterable[str], target: Path) -> None:
    """Delete all other files of a folder."""
    for file in target.iterdir():
        if file.name not in names:
            file.unlink()


def digest(matrix: Tensor, dtype: torch.dtype = torch.float32, *, signed_zeros: bool = False) -> str:
    """Return the sha256 of a matrix's bytes. Tools differ in the sign of zeros: all are positive unless `signed_zeros`."""
    assert matrix.dtype is dtype, matrix.dtype
    numbers = matrix if signed_zeros else matrix + 0.0
    return hashlib.sha256(numbers.contiguous().numpy().tobytes()).hexdigest()


def write_json(path: Path, value: object) -> None:
    """Write a file as they are kept here: an entry a line."""
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_digests(target: Path, tools: Sequence[str], digests: dict[str, str], dtype: str = "float32") -> None:
    """Write `digests.json`: the installed versions of the tools, and the digest of each module's matrix in dtype."""
    write_json(target / "digests.json", {"versions": {tool: version(tool) for tool in tools}, dtype: digests})


def wanted(checkpoints: Iterable[str]) -> list[str]:
    """Return the names on the command line, else all. Raises SystemExit for a name that is none of them."""
    known = list(checkpoints)
    for name in sys.argv[1:]:
        if name not in known:
            raise SystemExit(f"checkpoint '{name}': expected some of {', '.join(known)}")
    return sys.argv[1:] or known
