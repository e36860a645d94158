"""Ranks read their own rows and columns of a checkpoint: together hardly more than it has, and to the same bits."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import save_file
from transformers import LlamaConfig, Qwen3MoeConfig

from core.api.errors import CheckpointError
from core_loaders.gguf.loader import GGUFLoader
from core_loaders.safetensors.loader import SafetensorsLoader
from core_quantization.gguf.method import GGUFMethod
from core_runtime.layers.kernels import KernelSet
from core_runtime.models.families import decoder_spec
from core_runtime.models.tensors.packing import Packing
from core_runtime.specs.expert_placement import ExpertPlacement
from core_runtime.specs.model_part import Part
from core_runtime.specs.stages import stages_of
from tests.loaders.gguf_files import HIDDEN, LAYERS, write_gguf
from tests.models.harness import Harness
from tests.models.part_models import SEQUENCES, checkpoint, divided, settings
from tests.models.test_part_bits import SHAPE

INNER = 256


class Opened:
    """A loader of one checkpoint, whatever is asked of it."""

    def __init__(self, loader, path: Path) -> None:
        self.inner = loader
        self.manifest = loader.resolve(str(path))
        self.keeps_tensors = loader.keeps_tensors

    def resolve(self, ref: str):
        return self.manifest

    def iter(self, manifest, reads):
        return self.inner.iter(manifest, reads)


class Noted(Opened):
    """The same, which notes what was asked for."""

    def __init__(self, loader, path: Path) -> None:
        super().__init__(loader, path)
        self.names: set[str] = set()

    def iter(self, manifest, reads):
        self.names.update(reads)
        return super().iter(manifest, reads)


@pytest.fixture
def in_safetensors(tmp_path: Path) -> Opened:
    hf_config, state = checkpoint(LlamaConfig(**{**SHAPE, "num_key_value_heads": 4}))
    save_file({name: tensor.bfloat16() for name, tensor in state.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(hf_config))
    return Opened(SafetensorsLoader(), tmp_path)


@pytest.fixture
def in_gguf(tmp_path: Path) -> Opened:
    random = np.random.default_rng(3)
    shapes = {"ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER)}
    names = {f"blk.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in shapes.items()}
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in names.items()}
    counts = {"gemma3.feed_forward_length": INNER, "gemma3.attention.head_count_kv": 4}
    for layer in range(LAYERS):
        for name in ("attn_k", "attn_v"):
            tensors[f"blk.{layer}.{name}.weight"] = random.standard_normal((4 * 32, HIDDEN)).astype(np.float32)
    path = write_gguf(tmp_path / "m.gguf", "gemma3", GGMLQuantizationType.Q4_0, counts, tensors)
    return Opened(GGUFLoader(), path)


@pytest.mark.parametrize("form", ["in_safetensors", "in_gguf"])
def test_ranks_read_the_checkpoint_once_together(form: str, request, caplog) -> None:
    opened: Opened = request.getfixturevalue(form)
    method = GGUFMethod(opened.manifest, "int8") if form == "in_gguf" else None
    given = {**settings("native"), "dtype": "bfloat16", "method": method, "loader": opened}
    whole = Harness(opened.manifest.config, {}, **given).run(SEQUENCES)
    with caplog.at_level(logging.INFO):
        assert torch.equal(divided(opened.manifest.config, {}, 4, **given), whole)
    told = [record.args for record in caplog.records if record.getMessage().startswith("Rank ")]
    assert [rank for rank, *_ in told] == [0, 1, 2, 3]
    read, total = sum(args[2] for args in told), told[0][3]
    assert total <= read <= 1.1 * total


@pytest.mark.parametrize(
    ("placement", "shares"),
    [
        (ExpertPlacement(), [1 / 2, 1 / 2]),
        (ExpertPlacement("round_robin"), [1 / 2, 1 / 2]),
        (ExpertPlacement(redundant=4), [3 / 4, 3 / 4]),
    ],
)
def test_a_rank_reads_the_bytes_of_its_own_experts_alone(tmp_path: Path, placement, shares) -> None:
    """Of eight experts two ranks hold four each, or six with redundant ones."""
    config = Qwen3MoeConfig(**SHAPE, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64)
    hf_config, state = checkpoint(config)
    save_file({name: tensor.bfloat16() for name, tensor in state.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(hf_config))
    read = []
    for rank in range(2):
        opened = Noted(SafetensorsLoader(), tmp_path)
        part = Part(rank, 2, experts=placement)
        given = {**settings("native"), "dtype": "bfloat16", "loader": opened}
        Harness(opened.manifest.config, {}, part=part, reduce=lambda tensor: None, **given)
        read.append({name for name in opened.names if ".experts." in name})
    sizes = {name: tensor.nbytes for name, tensor in opened.manifest.tensors.items() if ".experts." in name}
    total = sum(sizes.values())
    assert total > 0 and read[0] | read[1] == sizes.keys()
    assert [sum(sizes[name] for name in names) / total for names in read] == shares


def test_stages_read_the_checkpoint_once_together(in_safetensors, caplog) -> None:
    """A tied head is the embedding, which the first stage and the last one read."""
    given = {**settings("native"), "dtype": "bfloat16", "loader": in_safetensors}
    stages = stages_of(decoder_spec(in_safetensors.manifest.config), 2)
    with caplog.at_level(logging.INFO):
        for blocks in stages:
            Harness(in_safetensors.manifest.config, {}, part=Part(blocks=blocks), **given)
    told = [record.args for record in caplog.records if record.getMessage().startswith("Rank ")]
    read, total = sum(args[2] for args in told), told[0][3]
    tied = in_safetensors.manifest.tensors["model.embed_tokens.weight"].nbytes if len(told) == 2 else 0
    assert len(told) == 2 and read <= 1.1 * (total + tied)


def test_a_loader_that_reads_whole_tensors_is_said_to(caplog) -> None:
    hf_config, state = checkpoint(LlamaConfig(**SHAPE))
    with caplog.at_level(logging.INFO):
        Harness(hf_config, state, part=Part(1, 2), reduce=lambda tensor: None)
    assert "Rank 1 of 2" in caplog.text
    assert "Its loader reads each of their tensors as a whole." in caplog.text


def test_saved_kernels_of_a_whole_model_are_refused() -> None:
    spec = decoder_spec(LlamaConfig(**SHAPE).to_dict())
    with pytest.raises(CheckpointError, match="those of a whole model, and cannot be divided into 2 parts"):
        Packing(spec, Part(0, 2), None, KernelSet([]), "float32", torch.float32, torch.device("cpu"), prepared=object())
