"""A loader that needs only config.json: random weights, the same in every run.

Owns: the generated values. Never does: read a weight file, except for an update that replaces these values. Called by:
tests, benchmarks, memory planning, trainers that send the weights later.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from core.api.errors import CheckpointError, nearest
from core_loaders.directory import read_directory
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.models.families import decoder_spec
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor, dtype

DTYPES = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}
FORMAT = "dummy"
STANDARD_DEVIATION = 0.02
PIECE = 1 << 24
"""Number of values that a GPU draws at a time."""


class DummyLoader:
    """Loader plugin with random weights for a configuration.

    device: name of the run's device, such as `cuda:0`. A GPU draws the values: the generator of a processor draws 10⁸ a
        second, a minute for a model of 8 B. Its values are others than a processor's, and also the same in every run.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device = device

    def resolve(self, ref: str) -> CheckpointManifest:
        """Build a manifest of the tensors that the configuration implies. Raises CheckpointError, UserError."""
        directory = read_directory(ref)
        named = directory.config.get("dtype") or directory.config.get("torch_dtype") or "bfloat16"
        if named not in DTYPES:
            known = ", ".join(DTYPES)
            raise CheckpointError(f"{ref}: dtype is {named!r} in config.json, expected one of {known}.")
        dtype, item_bytes = DTYPES[named]
        tensors = {}
        for name, shape in decoder_spec(directory.config).tensor_shapes().items():
            nbytes = math.prod(shape) * item_bytes
            tensors[name] = TensorInfo(
                name=name, shape=tuple(shape), dtype=dtype, nbytes=nbytes, file=0, offset=0, source=name
            )
        return directory.manifest(ref, FORMAT, [directory.path / "config.json"], tensors)

    def resolve_tensors(self, ref: str) -> CheckpointManifest:
        """Resolve the tensors of an update: the `ResolvesTensors` contract. Real ones come from safetensors files."""
        return SafetensorsLoader().resolve_tensors(ref)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield normal values of deviation 0.02, seeded by the name; norms leave their input as it is, biases are 0.

        Tensors resolved by `resolve_tensors` are read from their files.
        """
        if manifest.format != FORMAT:
            yield from SafetensorsLoader().iter(manifest, reads)
            return
        import torch

        dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        neutral = 1.0 - decoder_spec(manifest.config).norm.offset
        for name in reads:
            info = manifest.tensors.get(name)
            if info is None:
                raise CheckpointError(f"{manifest.ref}: there is no tensor '{name}'.{nearest(name, manifest.tensors)}")
            dtype = dtypes[info.dtype]
            if name.endswith("norm.weight"):
                yield name, torch.full(info.shape, neutral, dtype=dtype)
            elif name.endswith(".bias"):
                yield name, torch.zeros(info.shape, dtype=dtype)
            else:
                yield name, self._drawn(info.shape, dtype, zlib.crc32(name.encode()))

    def _drawn(self, shape: Sequence[int], dtype: dtype, seed: int) -> Tensor:
        """Return normal values on the CPU, drawn by the device."""
        import torch

        accelerator = None if self._device == "cpu" else torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            source = torch.Generator().manual_seed(seed)
            return torch.empty(shape).normal_(0.0, STANDARD_DEVIATION, generator=source).to(dtype)
        number = self._device.partition(":")[2]
        device = torch.device(accelerator.type, int(number or 0))
        source = torch.Generator(device).manual_seed(seed)
        values = torch.empty(shape, dtype=dtype, pin_memory=device.type != "cpu")
        # A piece at a time: memory that torch keeps afterwards would be missing from the KV cache.
        piece = torch.empty(min(values.numel(), PIECE), device=device)
        for part in values.view(-1).split(PIECE):
            part.copy_(piece[: len(part)].normal_(0.0, STANDARD_DEVIATION, generator=source).to(dtype))
        return values
