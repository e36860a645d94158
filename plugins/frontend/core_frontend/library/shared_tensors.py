"""Tensors in shared memory, from which an engine reads new weights or an adapter.

Owns: `SharedTensors`: the memory, and its description. Never does: know an engine. Called by: trainers, and programs
that update weights from Python.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import msgspec

from core.api.errors import RequestError
from core.api.weights import TensorPlace, WeightUpdate
from core_frontend.library.lora_request import LoRARequest, SharedAdapter

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 64


class SharedTensors:
    """Copies of tensors, by name, in POSIX shared memory; removed at the end of the `with` block. The engine copies
    what it reads.

    name: of the memory. tensors: its layout. Raises RequestError for anything but tensors.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        import torch

        if not isinstance(tensors, Mapping) or not all(isinstance(each, torch.Tensor) for each in tensors.values()):
            raise RequestError(
                "tensors: expected a mapping of names to tensors, such as model.state_dict().", param="tensors"
            )
        self.name = f"core-weights-{uuid4().hex}"
        self.tensors: list[TensorPlace] = []
        self._path = Path("/dev/shm", self.name)
        end = 0
        for name, tensor in tensors.items():
            start = -(-end // ALIGNMENT) * ALIGNMENT
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.tensors.append(TensorPlace(name, dtype, list(tensor.shape), start))
            end = start + tensor.nbytes
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, max(end, 1))
            memory = torch.frombuffer(mmap.mmap(descriptor, max(end, 1)), dtype=torch.uint8)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(descriptor)
        for place, tensor in zip(self.tensors, tensors.values(), strict=True):
            raw = tensor.detach().contiguous().flatten().view(torch.uint8)
            memory[place.offset : place.offset + tensor.nbytes].copy_(raw)

    def update(self, weight_version: str | None = None) -> WeightUpdate:
        """Return the argument of `update_weights`. weight_version: None: the number of the update."""
        return WeightUpdate(shared_memory=self.name, tensors=self.tensors, weight_version=weight_version)

    def adapter(
        self, lora_name: str, configuration: Any, lora_int_id: int = 0, *, load_inplace: bool = False
    ) -> LoRARequest:
        """Return a request for the adapter whose tensors these are, by peft's names (`get_peft_model_state_dict`).

        configuration: a `peft.LoraConfig`, or a mapping with what `adapter_config.json` would hold.
        lora_name, lora_int_id, load_inplace: see `LoRARequest`. Raises RequestError for a configuration that is no JSON.
        """
        found = configuration.to_dict() if hasattr(configuration, "to_dict") else configuration
        try:
            text = json.dumps(found, default=_listed)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"configuration: cannot be written as JSON ({error}).", param="configuration") from None
        described = {"configuration": text, "shared_memory": self.name, "tensors": msgspec.to_builtins(self.tensors)}
        return LoRARequest(lora_name, lora_int_id, load_inplace=load_inplace, shared=SharedAdapter(described))

    def close(self) -> None:
        """Remove the memory. May be called twice."""
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _listed(value: Any) -> list[Any]:
    """Return a set as JSON has it: peft keeps the names of modules in sets."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a {type(value).__name__} is none of its values")
