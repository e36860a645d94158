"""What moves rows, on packed rows: stacks of experts, parts of fused matrices, rotary pairs, groups of heads."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize
from gguf.quants import quantize

from core.api.errors import CheckpointError
from core_loaders.gguf.loader import GGUFLoader
from core_quantization.gguf.method import GGUFMethod
from tests.checkpoints.gguf.cases import IDS
from tests.families.harness import Harness, Piece
from tests.loaders.gguf_files import finish
from tests.loaders.test_gguf_architectures import unpacked
from tests.loaders.test_gguf_split import copy_metadata

Tensors = dict[str, np.ndarray]
TYPES = ("Q8_0", "Q4_0", "MXFP4")
"""That the `gguf` package writes, with blocks of 32."""


def may_be_packed(name: str, values: np.ndarray) -> bool:
    """Whether quantizers pack a tensor: matrices but for those of routers."""
    return values.ndim > 1 and values.shape[-1] % 32 == 0 and name.endswith("weight") and "gate_inp" not in name


def rewritten(
    path: Path,
    to: Path,
    change: Callable[[Tensors], Tensors],
    kind: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """The file with other tensors and metadata (None takes a key away); with a type, its matrices are packed."""
    metadata = metadata or {}
    reader = GGUFReader(path)
    tensors = change({tensor.name: np.array(tensor.data) for tensor in reader.tensors})
    writer = GGUFWriter(str(to), str(reader.fields["general.architecture"].contents()))
    copy_metadata(reader, writer, without=metadata)
    for key, value in metadata.items():
        if value is not None:
            item = GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
            writer.add_key_value(key, value, GGUFValueType.get_type(value), item)
    for name, values in tensors.items():
        if kind is not None and may_be_packed(name, values):
            number = GGMLQuantizationType[kind]
            writer.add_tensor(name, quantize(values, number), raw_dtype=number)
        else:
            writer.add_tensor(name, values)
    finish(writer)
    return to


def rounded(kind: str) -> Callable[[Tensors], Tensors]:
    """The values that packed matrices have."""
    number = GGMLQuantizationType[kind]

    def change(tensors: Tensors) -> Tensors:
        found = {}
        for name, values in tensors.items():
            found[name] = values
            if may_be_packed(name, values):
                found[name] = dequantize(quantize(values, number), number)
        return found

    return change


def logits(path: Path) -> np.ndarray:
    harness = Harness(path, loader=GGUFLoader(), method=lambda manifest: GGUFMethod(manifest, "none"))
    return harness.logits([Piece(0, IDS, 0)]).numpy()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["llama", "mixtral", "falcon-40b", "granitemoe-shared", "deepseek2"])
def test_packed_models_equal_their_values(name: str, kind: str, tmp_path: Path) -> None:
    path = unpacked(name, tmp_path)
    plain = rewritten(path, tmp_path / "plain.gguf", rounded(kind))
    packed = rewritten(path, tmp_path / "packed.gguf", lambda tensors: tensors, kind)
    kinds = {info.dtype for info in GGUFLoader().resolve(str(packed)).tensors.values()}
    assert kind in kinds
    assert np.abs(logits(packed) - logits(plain)).max() < 2e-5


def test_one_matrix_of_queries_keys_and_values_becomes_three(tmp_path: Path) -> None:
    """As older files of Phi 2 have it."""

    def fuse(tensors: Tensors) -> Tensors:
        for layer in range(2):
            for ending in ("weight", "bias"):
                parts = [tensors.pop(f"blk.{layer}.attn_{part}.{ending}") for part in "qkv"]
                tensors[f"blk.{layer}.attn_qkv.{ending}"] = np.concatenate(parts)
        return tensors

    path = unpacked("phi2", tmp_path)
    for kind in (None, "Q8_0"):
        apart = rewritten(path, tmp_path / "apart.gguf", lambda tensors: tensors, kind)
        fused = rewritten(path, tmp_path / "fused.gguf", fuse, kind)
        assert np.array_equal(logits(fused), logits(apart))


def test_experts_one_by_one_and_gates_with_ups_are_understood(tmp_path: Path) -> None:
    """As files of 2023 have them, and as the converter writes them when told to."""

    def alone(tensors: Tensors) -> Tensors:
        for name in [name for name in tensors if "_exps" in name]:
            for expert, values in enumerate(tensors.pop(name)):
                tensors[name.replace("_exps", f".{expert}")] = values
        return tensors

    def together(tensors: Tensors) -> Tensors:
        for layer in range(2):
            parts = [tensors.pop(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up")]
            tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
        return tensors

    mixtral = unpacked("mixtral", tmp_path)
    expected = logits(mixtral)
    assert np.array_equal(logits(rewritten(mixtral, tmp_path / "alone.gguf", alone)), expected)
    qwen = unpacked("qwen3moe", tmp_path)
    expected = logits(qwen)
    assert np.array_equal(logits(rewritten(qwen, tmp_path / "together.gguf", together)), expected)


def test_latent_attention_may_be_stored_unfolded(tmp_path: Path) -> None:
    """As files from before April 2025 have it."""

    def unfold(tensors: Tensors) -> Tensors:
        for layer in range(2):
            keys = tensors.pop(f"blk.{layer}.attn_k_b.weight")
            values = tensors.pop(f"blk.{layer}.attn_v_b.weight")
            both = np.concatenate((keys.swapaxes(1, 2), values), axis=1)
            tensors[f"blk.{layer}.attn_kv_b.weight"] = both.reshape(-1, both.shape[-1])
        return tensors

    path = unpacked("deepseek2", tmp_path)
    assert np.array_equal(logits(rewritten(path, tmp_path / "older.gguf", unfold)), logits(path))


def test_parts_of_one_matrix_need_one_type(tmp_path: Path) -> None:
    path = unpacked("granitemoe-shared", tmp_path)

    def mixed(tensors: Tensors) -> Tensors:
        for name in tensors:
            if "gate_shexp" in name:
                tensors[name] = tensors[name].astype(np.float16)
        return tensors

    with pytest.raises(CheckpointError, match=r"are one matrix of the model, but of types F16 and F32"):
        GGUFLoader().resolve(str(rewritten(path, tmp_path / "mixed.gguf", mixed)))


def test_two_names_of_one_tensor_are_refused(tmp_path: Path) -> None:
    path = unpacked("mixtral", tmp_path)

    def twice(tensors: Tensors) -> Tensors:
        tensors["blk.0.ffn_gate.1.weight"] = tensors["blk.0.ffn_gate_exps.weight"][1]
        return tensors

    with pytest.raises(CheckpointError, match=r"'blk.0.ffn_gate_exps.weight' and 'blk.0.ffn_gate.1.weight' are both"):
        GGUFLoader().resolve(str(rewritten(path, tmp_path / "twice.gguf", twice)))


def test_scales_of_whole_matrices_are_found(tmp_path: Path) -> None:
    """As files of type NVFP4 have them; those of inputs are computed anew for each token."""

    def scaled(tensors: Tensors) -> Tensors:
        tensors["blk.0.attn_output.scale"] = np.float32([0.5])
        tensors["blk.0.attn_output.input_scale"] = np.float32([0.25])
        tensors["blk.1.ffn_up_exps.scale"] = np.float32([1, 2, 3, 4])
        return tensors

    path = rewritten(unpacked("qwen3moe", tmp_path), tmp_path / "scaled.gguf", scaled)
    loader = GGUFLoader()
    manifest = loader.resolve(str(path))
    names = [name for name in manifest.tensors if "scale" in name]
    found = {name: tensor.tolist() for name, tensor in loader.iter(manifest, names)}
    experts = {f"model.layers.1.mlp.experts.{index}.up_proj.weight_scale_2": [[index + 1.0]] for index in range(4)}
    assert found == {"model.layers.0.self_attn.o_proj.weight_scale_2": [0.5], **experts}
