"""The fitting of an adapter to a model: names, shapes and orders of rows.

Owns: the translation from modules, as the adapter's tool names them, to parts of the model's layers, and the checks. Never
does: know a format of files, or compute. Called by: the executor's reading of adapters, in a thread next to steps.

Names go through the checkpoint's own map, as if each changed matrix were a tensor of it. So what a family renames, wraps,
stacks or reorders holds for adapters as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

from core.api.errors import CheckpointError, UserError
from core_runtime.models.adapters.layers import AdaptedPart, LayerKey, adapted_parts
from core_runtime.models.tensors.row_order import row_order
from core_runtime.models.tensors.weight_map import TensorView, WeightMap
from core_runtime.specs.checkpoint import TensorInfo
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.weights.adapter_contents import AdapterContents, ModuleChange

NamesOf = Callable[[dict[str, TensorInfo]], WeightMap]
"""Puts tensors through the map of the checkpoint's names."""


@dataclass(frozen=True, slots=True)
class PartChange:
    """The change of one part of a layer, its outputs in the engine's order.

    module: name of the module, for messages.
    """

    part: AdaptedPart
    module: str
    change: ModuleChange

    @property
    def rank(self) -> int:
        """Rank of the matrix's change; 0 without one."""
        return 0 if self.change.a is None else int(self.change.a.shape[0])


class Fitting:
    """Fits adapters to one model.

    spec: shape of the whole model.
    names: the checkpoint's map. names_of: the same map for other tensors.
    max_rank: largest rank of a matrix.
    targets: names of modules that adapters may change; empty: all.
    """

    def __init__(
        self, spec: DecoderSpec, names: WeightMap, names_of: NamesOf, max_rank: int, targets: Sequence[str] = ()
    ) -> None:
        self._parts = adapted_parts(spec)
        self._names_of = names_of
        self._max_rank = max_rank
        self._targets = tuple(targets)
        sources = names.sources
        self._known = {name: sources.get(f"{name}.weight", name).removesuffix(".weight") for name in self._parts}
        self._others = {f"{part.name}.weight" for part in spec.linears()} - {f"{name}.weight" for name in self._parts}

    def fit(self, name: str, contents: AdapterContents) -> dict[LayerKey, list[PartChange]]:
        """Return the changes of each layer. name: the adapter's, for messages. Raises UserError, in one sentence."""
        if not contents.changes:
            raise UserError(f"Adapter '{name}' changes no module, so its answers would be those of the base model.")
        for change in contents.changes:
            self._check(name, change)
        found: dict[LayerKey, list[PartChange]] = {}
        changed: dict[str, str] = {}
        for change, canonical, view in self._placed(name, contents.changes):
            part = self._parts[canonical]
            if canonical in changed:
                raise UserError(
                    f"Adapter '{name}' changes {changed[canonical]} twice, the second time as {change.module}."
                )
            changed[canonical] = change.module
            fitted = self._fitted(name, part, change, view)
            found.setdefault(part.layer, []).append(PartChange(part, change.module, fitted))
        return found

    def _check(self, name: str, change: ModuleChange) -> None:
        """Check what needs no model: numbers, the rank, and the targets."""
        for role, tensor in change.tensors().items():
            if not bool(tensor.isfinite().all()):
                raise UserError(f"Adapter '{name}': {role} of {change.module} has numbers that are not finite.")
        if change.a is not None and len(change.a) > self._max_rank:
            raise UserError(
                f"Adapter '{name}': the rank of {change.module} is {len(change.a)}; --max-lora-rank allows {self._max_rank}."
            )
        allowed = not self._targets or any(_ends_with(change.module, target) for target in self._targets)
        if not allowed:
            raise UserError(
                f"Adapter '{name}' changes {change.module}, which --lora-target-modules {' '.join(self._targets)} leaves out."
            )

    def _placed(self, name: str, changes: Sequence[ModuleChange]) -> list[tuple[ModuleChange, str, TensorView]]:
        """Return each change with the canonical part that it is about, and that part's place in the module's matrix."""
        by_module = {change.module: change for change in changes}
        shapes = {module: _shape_of(change) for module, change in by_module.items()}
        found = self._mapped(name, shapes)
        # An adapter that was trained on the body of the model names modules without its prefix.
        missing = {f"model.{module}": shape for module, shape in shapes.items() if module not in found}
        if missing:
            for module, parts in self._mapped(name, missing).items():
                found.setdefault(module.removeprefix("model."), parts)
        placed = []
        for module, change in by_module.items():
            if module not in found:
                raise UserError(self._nothing(name, module))
            placed += [(change, part, view) for part, view in found[module]]
        return placed

    def _mapped(self, name: str, shapes: Mapping[str, tuple[int, int]]) -> dict[str, list[tuple[str, TensorView]]]:
        """Return the parts of each module's matrix that are layers of the model."""
        tensors = {}
        for module, (rows, columns) in shapes.items():
            tensor = f"{module}.weight"
            tensors[tensor] = TensorInfo(tensor, (rows, columns), "F32", 4 * rows * columns, 0, 0, tensor)
        try:
            names = self._names_of(tensors)
        except CheckpointError as error:
            raise UserError(f"Adapter '{name}' does not fit the model: {error}") from error
        found: dict[str, list[tuple[str, TensorView]]] = {}
        for canonical, view in names.views.items():
            module = view.source.removesuffix(".weight")
            if canonical in self._others:
                raise UserError(f"Adapter '{name}' changes {module}, which adapters cannot change here yet.")
            part = canonical.removesuffix(".weight")
            if part in self._parts:
                found.setdefault(module, []).append((part, view))
        return found

    def _nothing(self, name: str, module: str) -> str:
        near = get_close_matches(module, list(self._known.values()), n=3, cutoff=0.5)
        hint = f" Names like it are {', '.join(near)}." if near else ""
        return f"Adapter '{name}' changes {module}, but the model has no such matrix.{hint}"

    def _fitted(self, name: str, part: AdaptedPart, change: ModuleChange, view: TensorView) -> ModuleChange:
        """Return the change of one part, with its outputs in the engine's order."""
        rows, inputs = part.part.shape
        b = _outputs(change.b, view)
        problem = ""
        if change.a is not None and change.a.shape[1] != inputs:
            problem = f"A of {change.module} has {change.a.shape[1]} inputs, the model's matrix has {inputs}"
        elif b is not None and b.shape[0] != rows:
            problem = f"B of {change.module} has {b.shape[0]} outputs, the model's matrix has {rows}"
        if problem:
            raise UserError(f"Adapter '{name}': {problem}; the adapter belongs to another base model.")
        vectors = {}
        for field in ("magnitude", "added_bias", "bias"):
            vector = _outputs(getattr(change, field), view)
            if vector is not None and vector.shape != (rows,):
                raise UserError(
                    f"Adapter '{name}': {field.replace('_', ' ')} of {change.module} has shape {list(vector.shape)}, expected "
                    f"[{rows}]; the adapter belongs to another base model."
                )
            vectors[field] = _ordered(vector, part)
        return ModuleChange(change.module, change.a, _ordered(b, part), change.scale, **vectors)


def _ends_with(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")


def _shape_of(change: ModuleChange) -> tuple[int, int]:
    """Return the shape (N, K) of the changed matrix, as far as the adapter shows it."""
    rows = next((len(one) for one in (change.b, change.magnitude, change.bias, change.weight) if one is not None), 1)
    columns = 1 if change.a is None else int(change.a.shape[1])
    return rows, columns


def _outputs(tensor: Tensor | None, view: TensorView) -> Tensor | None:
    """Return the rows of a part, from the rows of the module's whole matrix."""
    number, pieces = view.piece
    if tensor is None or pieces == 1:
        return tensor
    return tensor[number::pieces] if view.alternating else tensor.chunk(pieces)[number]


def _ordered(tensor: Tensor | None, part: AdaptedPart) -> Tensor | None:
    if tensor is None or not part.orders:
        return tensor
    order: torch.Tensor = row_order(part.orders, len(tensor))
    return tensor[order]
