"""The tensors of draft heads, read once and kept on the device that computes them.

Owns: reading through the checkpoint's own loader. Never does: know the meaning of a tensor. Called by: heads when they
are built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import linear

from core.api.errors import UserError
from core.plugin.hookspecs import LoadContext

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_tensors(context: LoadContext, names: Iterable[str]) -> dict[str, Tensor]:
    """Return tensors of the draft's checkpoint by name, on the device; floats in the dtype of plain matrices."""
    assert context.manifest is not None, "heads are built from a checkpoint"
    loader = context.options["loader"]
    found: dict[str, Tensor] = {}
    for name, tensor in loader.iter(context.manifest, sorted(set(names))):
        dtype = DTYPES[context.dtype] if tensor.is_floating_point() else tensor.dtype
        found[name] = tensor.to(context.device, dtype, copy=True)
    return found


def check_shapes(context: LoadContext, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UserError for a tensor whose shape does not fit the configuration and the model. expected: shapes by
    name.
    """
    assert context.manifest is not None, "heads are built from a checkpoint"
    for name, shape in expected.items():
        found = tuple(context.manifest.tensors[name].shape)
        if found != shape:
            raise UserError(
                f"--speculative-config.model: tensor '{name}' has shape {list(found)}, expected {list(shape)}; the draft was "
                "made for another model, or is damaged."
            )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [B, K] times the transpose of weight [N, K], plus bias [N]: [B, N] in the weight's dtype."""
    return linear(x.to(weight.dtype), weight, bias)
