"""Tiny checkpoints: a plain one written by the kit, and the author's own.

Owns: the writing of a random llama, and the opening of a checkpoint by the loader that knows it. Never does: quantize.
Called by: the suites, the fixtures of `core_kit.pytest_plugin`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from core.plugin.hookspecs import LoadContext
from core.plugin.registry import PluginRegistry
from core.plugin.table import load_plugin
from core_config.locating.files import file_facts
from core_config.selection import select_loader
from core_runtime.contracts import Loader
from core_runtime.models.families import tensor_shapes
from core_runtime.specs.checkpoint import CheckpointManifest

TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 260,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Configuration of the kit's model; 260 tokens: four special ones and every byte."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A checkpoint opened by a loader.

    loader: the loader that claims it.
    manifest: as the loader resolved it.
    """

    loader: Loader
    manifest: CheckpointManifest

    def tensor(self, name: str) -> Tensor:
        """Return a copy of one tensor."""
        return self.tensors((name,))[name]

    def tensors(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Return copies of tensors, by canonical name."""
        read = self.loader.iter(self.manifest, list(names))
        return {name: tensor.clone() for name, tensor in read}


def random_tensors(config: Mapping[str, Any], seed: int = 0, *, uneven: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield float32 values for every tensor of a model: norms 1 ± 0.1, everything else normal with deviation 0.3.

    uneven: matrices have rows, and groups of 16 inputs, of unlike sizes.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, shape in tensor_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            yield name, 1 + 0.1 * noise
        elif uneven and len(shape) == 2:
            yield name, 0.3 * noise * _sizes(*shape)
        else:
            yield name, 0.3 * noise


def _sizes(rows: int, columns: int) -> Tensor:
    """Return magnitudes [rows, columns] that differ between neighbouring rows, and between neighbouring groups of 16,
    32 or 64 inputs.
    """
    exponent = torch.arange(rows) * 3 % 5 - 2
    of_row = 2.0**exponent
    of_group = torch.tensor([1.0, 1.5, 4.0, 2.0, 6.0, 3.0, 1.0, 1.5])
    group = torch.arange(columns) // 16
    of_column = of_group[group % len(of_group)]
    return of_row.unsqueeze(1) * of_column


def write_checkpoint(directory: Path, seed: int = 0, *, uneven: bool = False, **changes: Any) -> Path:
    """Write config.json, model.safetensors and tokenizer.json of a tiny llama; `changes` go into the configuration.

    uneven: see `random_tensors`.
    """
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    config = {**TINY, **changes}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = dict(random_tensors(config, seed, uneven=uneven))
    save_file(tensors, str(directory / "model.safetensors"))
    write_tokenizer(directory)
    return directory


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer with one token per byte, after four special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    specials = ["<pad>", "<s>", "</s>", "<unk>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(specials + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(directory / "tokenizer.json"))


def open_sample(registry: PluginRegistry, ref: str) -> Sample:
    """Open the checkpoint at `ref` with the loader that claims it. Raises CoreError."""
    plugin = select_loader(registry, None, file_facts(ref))
    loader: Loader = load_plugin(plugin.manifest, LoadContext())
    return Sample(loader, loader.resolve(ref))
