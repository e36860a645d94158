"""The shapes of an adapter's changes, beside those of the model.

Owns: their checks, and what of a module's outputs a part of the model has. Never does: find a name, or order rows. Called by:
the fitting of an adapter. Errors: UserError, in one sentence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import Tensor

from core.api.errors import UserError
from core_runtime.models.adapters.whole_modules import WholeModule
from core_runtime.models.tensors.weight_map import TensorView
from core_runtime.specs.mixer_parts import NormTensor
from core_runtime.weights.adapter_contents import ModuleChange

VECTORS: Final = ("magnitude", "added_bias", "bias")
"""Changes of a module that have one number for each of its outputs."""


def of_whole(name: str, module: WholeModule, change: ModuleChange, view: TensorView) -> ModuleChange:
    """Return the change of a module of which the adapter has whole tensors. Raises UserError where it does not fit."""
    if change.tokens is not None:
        raise UserError(f"Adapter '{name}' has rows of tokens for {change.module}, which is no embedding.")
    if (change.bias is not None or change.added_bias is not None) and not module.has_bias:
        raise UserError(f"Adapter '{name}' has a bias for {change.module}, which has none in the model.")
    own = replace(
        change,
        b=outputs_of(change.b, view),
        weight=None if change.weight is None else view.of(change.weight),
        magnitude=outputs_of(change.magnitude, view),
        added_bias=outputs_of(change.added_bias, view),
        bias=outputs_of(change.bias, view),
    )
    problem = _why_no_fit(own, module.shape)
    if problem is not None:
        raise UserError(f"Adapter '{name}': {problem}; the adapter belongs to another base model.")
    return own


def _why_no_fit(change: ModuleChange, shape: tuple[int, ...]) -> str | None:
    """Return why a change does not fit a module of this shape; None: it fits."""
    module, rows = change.module, shape[0]
    if change.a is not None and (len(shape) != 2 or change.a.shape[1] != shape[1]):
        return f"A of {module} has {change.a.shape[1]} inputs, the model's module has shape {list(shape)}"
    if change.b is not None and len(change.b) != rows:
        return f"B of {module} has {len(change.b)} outputs, the model's module has {rows}"
    if change.weight is not None and tuple(change.weight.shape) != shape:
        return f"{module} has shape {list(change.weight.shape)}, expected {list(shape)}"
    for what in VECTORS:
        vector = getattr(change, what)
        if vector is not None and tuple(vector.shape) != (rows,):
            return f"the {what.replace('_', ' ')} of {module} does not have the shape [{rows}]"
    return None


def check_norm(name: str, change: ModuleChange, norm: NormTensor) -> None:
    """Check the change of a norm, which may be replaced as a whole alone."""
    if change.a is not None or change.tokens is not None:
        raise UserError(f"Adapter '{name}' has matrices for {change.module}, which is a norm; it may be replaced.")
    if change.bias is not None and not norm.spec.bias:
        raise UserError(f"Adapter '{name}' has a bias for {change.module}, but this norm of the model has none.")
    for what, tensor in (("weight", change.weight), ("bias", change.bias)):
        if tensor is not None and tuple(tensor.shape) != norm.shape:
            raise UserError(
                f"Adapter '{name}': the {what} of {change.module} has shape {list(tensor.shape)}, expected {list(norm.shape)}; "
                "the adapter belongs to another base model."
            )


def check_shapes(
    name: str, change: ModuleChange, product: tuple[int, int], matrix: tuple[int, int] | None = None
) -> None:
    """Check the shapes of a change outside of blocks. product: (N, K) of b @ a. matrix: shape of a replaced weight; None: the
    same.
    """
    shape = matrix or product
    if change.a is not None and change.a.shape[1] != product[1]:
        problem = f"A of {change.module} has {change.a.shape[1]} inputs, expected {product[1]}"
    elif change.b is not None and change.b.shape[0] != product[0]:
        problem = f"B of {change.module} has {change.b.shape[0]} outputs, expected {product[0]}"
    elif change.weight is not None and tuple(change.weight.shape) != shape:
        problem = f"{change.module} has shape {list(change.weight.shape)}, expected {list(shape)}"
    else:
        vectors = {"bias": change.bias, "bias of B": change.added_bias, "magnitude": change.magnitude}
        wrong = [what for what, one in vectors.items() if one is not None and tuple(one.shape) != product[:1]]
        if not wrong:
            return
        problem = f"the {wrong[0]} of {change.module} does not have the shape [{product[0]}]"
    raise UserError(f"Adapter '{name}': {problem}; the adapter belongs to another base model or vocabulary.")


def outputs_of(tensor: Tensor | None, view: TensorView) -> Tensor | None:
    """Return the rows of a part, from the rows of the module's whole matrix."""
    number, pieces = view.piece
    if tensor is None or pieces == 1:
        return tensor
    return tensor[number::pieces] if view.alternating else tensor.chunk(pieces)[number]
