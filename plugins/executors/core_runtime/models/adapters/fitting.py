"""The fitting of an adapter to a model: names, shapes and orders of rows.

Owns: the translation from modules, as the adapter's tool names them, to parts of the model's layers, and the checks. Never
does: know a format of files, or compute. Called by: the executor's reading of adapters, in a thread next to steps.

Names go through the checkpoint's own map, as if each changed matrix were a tensor of it. So what a family renames, wraps,
stacks or reorders holds for adapters as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final

import torch
from torch import Tensor

from core.api.errors import CheckpointError, UserError
from core.api.specs import AttentionSpec, RotaryPairs
from core_runtime.models.adapters.layers import AdaptedPart, LayerKey, adapted_parts
from core_runtime.models.tensors.row_order import row_order
from core_runtime.models.tensors.weight_map import TensorView, WeightMap
from core_runtime.specs.checkpoint import TensorInfo
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.weights.adapter_contents import AdapterContents, ModuleChange

NamesOf = Callable[[dict[str, TensorInfo]], WeightMap]
"""Puts tensors through the map of the checkpoint's names."""
_STACK: Final = re.compile(r"\blayers\.(?P<block>\d+)\..*\bexperts\.(?P<side>gate_up_proj|up_proj|down_proj)$")
"""Parameters with the matrices of all experts of a layer."""
EMBEDDING: Final = "embedding"
HEAD: Final = "head"


@dataclass(frozen=True, slots=True)
class PartChange:
    """The change of one part of a layer, its outputs in the engine's order.

    module: name of the module, for messages.
    """

    part: AdaptedPart
    module: str
    change: ModuleChange


@dataclass(slots=True)
class Fitted:
    """The changes of one adapter, by what they change in the model.

    layers: changes of each layer of a block.
    embedding, head: changes of the embedding and of the output head, or None.
    class_layers: changes of layers of the head for classes, by their number.
    """

    layers: dict[LayerKey, list[PartChange]] = field(default_factory=dict)
    embedding: ModuleChange | None = None
    head: ModuleChange | None = None
    class_layers: dict[int, ModuleChange] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Largest rank of all changes."""
        changes = [part.change for parts in self.layers.values() for part in parts]
        changes += [one for one in (self.embedding, self.head, *self.class_layers.values()) if one is not None]
        return max((0 if change.a is None else len(change.a) for change in changes), default=0)


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
        self.spec = spec
        self._parts = adapted_parts(spec)
        self._names_of = names_of
        self._max_rank = max_rank
        self._targets = tuple(targets)
        self._outer = {f"{spec.embedding().name}.weight": EMBEDDING, "lm_head.weight": HEAD, "lm_head.bias": HEAD}
        self._class_layers: dict[str, int] = {}
        if spec.pooling_head is not None:
            for number, layer in enumerate(spec.pooling_head.layers):
                self._class_layers[f"{layer.name}.weight"] = number
        sources = names.sources
        self._known = {name: sources.get(f"{name}.weight", name).removesuffix(".weight") for name in self._parts}
        self._others = set(spec.tensor_shapes()).difference(f"{name}.weight" for name in self._parts)

    def fit(self, name: str, contents: AdapterContents) -> Fitted:
        """Return the changes of the model. name: the adapter's, for messages. Raises UserError, in one sentence."""
        if not contents.changes:
            raise UserError(f"Adapter '{name}' changes no module, so its answers would be those of the base model.")
        for change in contents.changes:
            self._check(name, change)
        found = Fitted()
        changed: dict[str, str] = {}
        for change, canonical, view in self._placed(name, contents.changes):
            if canonical in changed:
                raise UserError(
                    f"Adapter '{name}' changes {changed[canonical]} twice, the second time as {change.module}."
                )
            changed[canonical] = change.module
            self._add(name, found, change, canonical, view)
        self._tie(found, contents)
        return found

    def _add(self, name: str, found: Fitted, change: ModuleChange, canonical: str, view: TensorView) -> None:
        """Add the change of one canonical tensor."""
        part = self._parts.get(canonical.removesuffix(".weight"))
        if part is not None:
            if change.weight is not None or change.tokens is not None:
                raise UserError(
                    f"Adapter '{name}' replaces {change.module}; embedding, output head and heads for classes may be replaced, "
                    "other modules may not."
                )
            fitted = self._fitted(name, part, change, view)
            found.layers.setdefault(part.layer, []).append(PartChange(part, change.module, fitted))
        elif canonical in self._class_layers:
            layer = self._class_layers[canonical]
            assert self.spec.pooling_head is not None, "a layer of the head was found"
            _check_shapes(name, change, self.spec.pooling_head.layers[layer].shape)
            found.class_layers[layer] = change
        else:
            self._add_outer(name, found, change, self._outer[canonical])

    def _add_outer(self, name: str, found: Fitted, change: ModuleChange, place: str) -> None:
        """Add the change of embedding or head."""
        vocabulary, size = self.spec.embedding().shape
        if place == HEAD and not self.spec.causal_lm:
            raise UserError(
                f"Adapter '{name}' changes {change.module}, but the model is served without an output head."
            )
        has_bias = change.bias is not None or change.added_bias is not None
        if change.magnitude is not None or (place == EMBEDDING and has_bias):
            raise UserError(f"Adapter '{name}' has DoRA or a bias for {change.module}, which is not served there.")
        if change.tokens is not None:
            ids, rows = change.tokens
            if int(ids.max()) >= vocabulary:
                raise UserError(
                    f"Adapter '{name}' has a row for token {int(ids.max())}; the vocabulary of the model has {vocabulary}."
                )
            if rows.shape[1] != size:
                raise UserError(
                    f"Adapter '{name}': its rows of tokens have {rows.shape[1]} numbers, the model's have {size}."
                )
        _check_shapes(
            name, change, (size, vocabulary) if place == EMBEDDING else (vocabulary, size), (vocabulary, size)
        )
        if place == EMBEDDING:
            found.embedding = change
        else:
            found.head = change

    def _tie(self, found: Fitted, contents: AdapterContents) -> None:
        """Let a head that is the embedding's matrix change like it, where peft does so."""
        change = found.embedding
        if not self.spec.tied or not self.spec.causal_lm or change is None or found.head is not None:
            return
        tied = ModuleChange(change.module, tokens=change.tokens)
        if contents.ties:
            tied = replace(tied, weight=change.weight, scale=change.scale)
            if change.a is not None and change.b is not None:
                tied = replace(tied, a=change.b.T.contiguous(), b=change.a.T.contiguous())
        if tied.tokens is not None or tied.weight is not None or tied.a is not None:
            found.head = tied

    def _check(self, name: str, change: ModuleChange) -> None:
        """Check what needs no model: numbers, the rank, and the targets."""
        for role, tensor in change.tensors().items():
            if not bool(tensor.isfinite().all()):
                raise UserError(f"Adapter '{name}': {role} of {change.module} has numbers that are not finite.")
        stacked = _STACK.search(change.module)
        if change.a is not None and stacked is None and len(change.a) > self._max_rank:
            raise UserError(
                f"Adapter '{name}': the rank of {change.module} is {len(change.a)}; --max-lora-rank allows {self._max_rank}."
            )
        allowed = not self._targets or any(_ends_with(change.module, target) for target in self._targets)
        if not allowed:
            raise UserError(
                f"Adapter '{name}' changes {change.module}, which --lora-target-modules {' '.join(self._targets)} leaves out."
            )

    def _placed(self, name: str, changes: Sequence[ModuleChange]) -> list[tuple[ModuleChange, str, TensorView]]:
        """Return each change with the canonical tensor that it is about, and that tensor's place in the module's matrix."""
        placed: list[tuple[ModuleChange, str, TensorView]] = []
        by_module: dict[str, ModuleChange] = {}
        for change in changes:
            if _STACK.search(change.module):
                placed += self._stacked(name, change)
            else:
                by_module[change.module] = change
        shapes = {module: _shape_of(change) for module, change in by_module.items()}
        found = self._mapped(name, shapes)
        missing: dict[str, str] = {}
        for module in shapes:
            if module not in found:
                missing |= {other: module for other in self._other_names(module)}
        if missing:
            for other, parts in self._mapped(
                name, {other: shapes[module] for other, module in missing.items()}
            ).items():
                found.setdefault(missing[other], parts)
        for module, change in by_module.items():
            if module not in found:
                raise UserError(self._nothing(name, module))
            placed += [(change, part, view) for part, view in found[module]]
        return placed

    def _other_names(self, module: str) -> Iterator[str]:
        """Yield the names that a module may have in the checkpoint, where its own is not known."""
        # An adapter that was trained on the body of the model names modules without its prefix.
        yield f"model.{module}"
        # transformers calls experts `mlp`, whatever their module is called in files.
        found = re.search(r"\blayers\.(\d+)\.mlp\.", module)
        if found is not None and int(found[1]) < len(self.spec.blocks):
            experts = self.spec.blocks[int(found[1])].experts
            if experts is not None:
                module_name, *_ = experts.names
                yield module[: found.end() - len("mlp.")] + f"{module_name}." + module[found.end() :]

    def _stacked(self, name: str, change: ModuleChange) -> Iterator[tuple[ModuleChange, str, TensorView]]:
        """Yield the change of each expert's matrices, from the change of a parameter that has those of all experts."""
        found = _STACK.search(change.module)
        assert found is not None and change.a is not None and change.b is not None, "the caller has looked"
        index = int(found["block"])
        experts = self.spec.expert_linears(index) if index < len(self.spec.blocks) else []
        count = len(experts)
        if not count or len(change.a) % count:
            raise UserError(
                f"Adapter '{name}': A of {change.module} has {len(change.a)} rows, which is no rank for each of {count} "
                "experts."
            )
        names = self._stack_names(change, count)
        rank = len(change.a) // count
        # Factors of an expert e: rows [e * r, (e + 1) * r) of A, and columns e, e + experts, ... of B.
        a = change.a.unflatten(0, (count, rank))
        b = change.b.unflatten(1, (rank, count))
        for canonical, view in names:
            expert = 0 if view.expert is None else view.expert[0]
            yield replace(change, a=a[expert], b=b[:, :, expert].contiguous()), canonical, view

    def _stack_names(self, change: ModuleChange, count: int) -> list[tuple[str, TensorView]]:
        """Return the matrices of experts that a parameter has, by the checkpoint's map, else as transformers stacks them."""
        assert change.a is not None and change.b is not None, "the caller has looked"
        shape = (count, len(change.b), change.a.shape[1])
        tensor = TensorInfo(change.module, shape, "F32", 4 * math.prod(shape), 0, 0, change.module)
        views = self._names_of({change.module: tensor}).views
        known = [(name, view) for name, view in views.items() if name.removesuffix(".weight") in self._parts]
        if known:
            return known
        found = _STACK.search(change.module)
        assert found is not None, "the caller has looked"
        names = []
        for expert, linears in enumerate(self.spec.expert_linears(int(found["block"]))):
            parts = linears.down if found["side"] == "down_proj" else linears.gate_up
            for number, part in enumerate(parts):
                view = TensorView(change.module, (expert, count), (number, len(parts)))
                names.append((f"{part.name}.weight", view))
        return names

    def _mapped(self, name: str, shapes: Mapping[str, tuple[int, int]]) -> dict[str, list[tuple[str, TensorView]]]:
        """Return the canonical tensors that each module's matrix contains, as far as adapters can change them."""
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
            is_known = canonical in self._outer or canonical in self._class_layers
            if is_known or canonical.removesuffix(".weight") in self._parts:
                found.setdefault(module, []).append((canonical, view))
            elif canonical in self._others:
                raise UserError(f"Adapter '{name}' changes {module}, which adapters cannot change here.")
        return found

    def _nothing(self, name: str, module: str) -> str:
        near = get_close_matches(module, list(self._known.values()), n=3, cutoff=0.5)
        hint = f" Names like it are {', '.join(near)}." if near else ""
        return f"Adapter '{name}' changes {module}, but the model has no such matrix.{hint}"

    def _fitted(self, name: str, part: AdaptedPart, change: ModuleChange, view: TensorView) -> ModuleChange:
        """Return the change of one part, with its outputs in the engine's order."""
        rows, inputs = part.part.shape
        b = _outputs(change.b, view)
        mixer = self.spec.blocks[part.layer.block].mixer
        if change.paired and b is not None and len(b) == rows and isinstance(mixer, AttentionSpec):
            b = b[row_order((RotaryPairs(mixer.head_size, 0, mixer.head_size),), rows)]
        problem = ""
        if change.a is not None and change.a.shape[1] != inputs:
            problem = f"A of {change.module} has {change.a.shape[1]} inputs, the model's matrix has {inputs}"
        elif b is not None and b.shape[0] != rows:
            problem = f"B of {change.module} has {b.shape[0]} outputs, the model's matrix has {rows}"
        if problem:
            raise UserError(f"Adapter '{name}': {problem}; the adapter belongs to another base model.")
        vectors = {}
        for what in ("magnitude", "added_bias", "bias"):
            vector = _outputs(getattr(change, what), view)
            if vector is not None and vector.shape != (rows,):
                raise UserError(
                    f"Adapter '{name}': {what.replace('_', ' ')} of {change.module} has shape {list(vector.shape)}, expected "
                    f"[{rows}]; the adapter belongs to another base model."
                )
            vectors[what] = _ordered(vector, part)
        return ModuleChange(change.module, change.a, _ordered(b, part), change.scale, **vectors)


def _check_shapes(
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
    elif change.bias is not None and tuple(change.bias.shape) != product[:1]:
        problem = f"the bias of {change.module} has shape {list(change.bias.shape)}, expected [{product[0]}]"
    else:
        return
    raise UserError(f"Adapter '{name}': {problem}; the adapter belongs to another base model or vocabulary.")


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
