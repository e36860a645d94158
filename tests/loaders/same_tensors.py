"""The check that every loader of the same model passes: the same tensors to the bit, whatever order they come in."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from core_runtime.contracts import Loader
from core_runtime.specs.checkpoint import CheckpointManifest


def check_same(loader: Loader, manifest: CheckpointManifest, directory: Path) -> None:
    """Names, shapes, dtypes and bits of the safetensors files in `directory`."""
    expected = {}
    for file in directory.glob("*.safetensors"):
        expected |= load_file(file)
    assert {name: info.shape for name, info in manifest.tensors.items()} == {
        name: tuple(tensor.shape) for name, tensor in expected.items()
    }
    got = {name: tensor.clone() for name, tensor in loader.iter(manifest, list(expected))}
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape, name
        assert torch.equal(_bits(got[name]), _bits(tensor)), name
    few = sorted(expected)[1::7]
    assert {name for name, _ in loader.iter(manifest, few)} == set(few)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
