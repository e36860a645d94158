"""Layers of a tower that compute in float32 where the processor multiplies no smaller numbers.

Owns: `widen`. Never does: change a stored weight, so the memory of a tower stays what the plan says. Called by: the tower and
the encoder.

Without instructions for bfloat16 torch multiplies such matrices number by number: 1.7 GFLOP/s of one core's time, where float32
has 48 (AMD EPYC with AVX2, torch 2.13, 256 × 1152 by 1152 × 1152). Widening a matrix costs a hundredth of its product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

Kept = dict[str, Tensor]


def widen(model: nn.Module, dtype: torch.dtype) -> None:
    """Have each layer with weights of its own widen its inputs and these while it computes, if that is faster here.

    dtype: of the weights. What lies between the layers is float32 then.
    """
    if dtype == torch.float32 or multiplies(dtype):
        return
    done: set[nn.Module] = set()
    for module in model.modules():
        if module in done:
            continue
        # This one computes with the weights of its inner layer itself.
        parts = [*module.modules()] if isinstance(module, nn.MultiheadAttention) else [module]
        done.update(parts)
        small = [each for each in (*module.parameters(False), *module.buffers(False)) if each.dtype == dtype]
        if small:
            _widen(module, parts, dtype)


def multiplies(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies matrices of `dtype`, as torch says."""
    found = getattr(torch.ops.mkldnn, f"_is_mkldnn_{'bf16' if dtype == torch.bfloat16 else 'fp16'}_supported", None)
    return found is None or bool(found())


def _widen(module: nn.Module, parts: Sequence[nn.Module], dtype: torch.dtype) -> None:
    """Register what comes before and behind a call of one layer. parts: modules whose weights it uses."""
    kept: list[tuple[dict[str, Tensor | None], Kept]] = []

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.dtype == dtype else value

    def before(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        for values in (values for part in parts for values in (part._parameters, part._buffers)):
            small = {name: each for name, each in values.items() if each is not None and each.dtype == dtype}
            kept.append((values, small))
            values.update((name, each.float()) for name, each in small.items())
        return tuple(map(wide, given)), {name: wide(value) for name, value in named.items()}

    def behind(*_: Any) -> None:
        while kept:
            values, small = kept.pop()
            values.update(small)

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(behind, always_call=True)
