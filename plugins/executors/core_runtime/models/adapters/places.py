"""The places of an adapter's modules in a model, by their names.

Owns: the translation from modules, as the adapter's tool names them, to canonical tensors. Never does: compare a
shape, or change a tensor, except that it divides stacks of experts. Called by: the fitting of an adapter.

Names go through the checkpoint's own map, as if each changed matrix were a tensor of it. So what a family renames, wraps,
stacks or reorders holds for adapters as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from core.api.errors import CheckpointError, UserError
from core_runtime.models.adapters.layers import adapted_norms, adapted_parts
from core_runtime.models.adapters.whole_modules import whole_modules
from core_runtime.models.families.wrappers import NOT_OF_THE_TEXT
from core_runtime.models.tensors.weight_map import TensorView, WeightMap
from core_runtime.specs.checkpoint import TensorInfo
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.weights.adapter_contents import ModuleChange

NamesOf = Callable[[dict[str, TensorInfo]], WeightMap]
"""Puts tensors through the map of the checkpoint's names."""
_STACK: Final = re.compile(r"\blayers\.(?P<block>\d+)\..*\bexperts\.(?P<side>gate_up_proj|up_proj|down_proj)$")
"""Parameters with the matrices of all experts of a layer."""
EMBEDDING: Final = "embedding"
HEAD: Final = "head"


class Places:
    """The places of adapters' modules in one model.

    spec: shape of the whole model.
    names: the checkpoint's map. names_of: the same map for other tensors.

    parts: parts of the layers of blocks, by name.
    outer: `EMBEDDING` and `HEAD`, by canonical tensor.
    class_layers: number of each layer of the head for classes, by canonical tensor. class_norms: the same by its norm.
    norms: norms of the model, by canonical tensor of their weights.
    whole: modules of which adapters have whole tensors, by canonical tensor of their weights.
    """

    def __init__(self, spec: DecoderSpec, names: WeightMap, names_of: NamesOf) -> None:
        self._spec = spec
        self._names_of = names_of
        self.parts = adapted_parts(spec)
        self.outer = {f"{spec.embedding().name}.weight": EMBEDDING, "lm_head.weight": HEAD, "lm_head.bias": HEAD}
        self.class_layers: dict[str, int] = {}
        self.class_norms: dict[str, int] = {}
        self.norms = {f"{name}.weight": norm for name, norm in adapted_norms(spec).items() if norm.part.spec.weighted}
        self.whole = {f"{one.module}.weight": one for one in whole_modules(spec)}
        if spec.pooling_head is not None:
            for number, layer in enumerate(spec.pooling_head.layers):
                self.class_layers[f"{layer.name}.weight"] = number
                if layer.norm is not None:
                    self.class_norms[f"{layer.norm.name}.weight"] = number
        self._outside = {*self.outer, *self.class_layers, *self.class_norms, *self.norms, *self.whole}
        sources = names.sources
        self._known = {name: sources.get(f"{name}.weight", name).removesuffix(".weight") for name in self.parts}
        self._others = set(spec.tensor_shapes()).difference(f"{name}.weight" for name in self.parts) - self._outside

    def of(self, name: str, changes: Sequence[ModuleChange]) -> list[tuple[ModuleChange, str, TensorView]]:
        """Return each change with the canonical tensor that it is about, and that tensor's place in the module's matrix.

        name: the adapter's, for messages. Raises UserError for a module without a place.
        """
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
        # transformers has a module around a part of Kimi Linear's layers, which its files do not name.
        if ".forget_gate." in module:
            yield module.replace(".forget_gate.", ".")
        # transformers calls experts `mlp`, whatever their module is called in files.
        found = re.search(r"\blayers\.(\d+)\.mlp\.", module)
        if found is not None and int(found[1]) < len(self._spec.blocks):
            experts = self._spec.blocks[int(found[1])].experts
            if experts is not None:
                module_name, *_ = experts.names
                yield module[: found.end() - len("mlp.")] + f"{module_name}." + module[found.end() :]

    def _stacked(self, name: str, change: ModuleChange) -> Iterator[tuple[ModuleChange, str, TensorView]]:
        """Yield the change of each expert's matrices, from the change of a parameter that has those of all experts."""
        found = _STACK.search(change.module)
        assert found is not None and change.a is not None and change.b is not None, "the caller has looked"
        index = int(found["block"])
        experts = self._spec.expert_linears(index) if index < len(self._spec.blocks) else []
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
        known = [(name, view) for name, view in views.items() if name.removesuffix(".weight") in self.parts]
        if known:
            return known
        found = _STACK.search(change.module)
        assert found is not None, "the caller has looked"
        names = []
        for expert, linears in enumerate(self._spec.expert_linears(int(found["block"]))):
            parts = linears.down if found["side"] == "down_proj" else linears.gate_up
            for number, part in enumerate(parts):
                view = TensorView(change.module, (expert, count), (number, len(parts)))
                names.append((f"{part.name}.weight", view))
        return names

    def _mapped(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[tuple[str, TensorView]]]:
        """Return the canonical tensors that each module's matrix contains, as far as adapters can change them."""
        tensors = {}
        for module, shape in shapes.items():
            tensor = f"{module}.weight"
            tensors[tensor] = TensorInfo(tensor, shape, "F32", 4 * math.prod(shape), 0, 0, tensor)
        try:
            names = self._names_of(tensors)
        except CheckpointError as error:
            raise UserError(f"Adapter '{name}' does not fit the model: {error}") from error
        found: dict[str, list[tuple[str, TensorView]]] = {}
        for canonical, view in names.views.items():
            module = view.source.removesuffix(".weight")
            if canonical in self._outside or canonical.removesuffix(".weight") in self.parts:
                found.setdefault(module, []).append((canonical, view))
            elif canonical in self._others:
                raise UserError(f"Adapter '{name}' changes {module}, which adapters cannot change here.")
        return found

    def _nothing(self, name: str, module: str) -> str:
        tensor = f"{module}.weight"
        reason = self._names_of({tensor: TensorInfo(tensor, (1, 1), "F32", 4, 0, 0, tensor)}).ignored.get(tensor)
        if reason == NOT_OF_THE_TEXT:
            return (
                f"Adapter '{name}' changes {module}, which is of a tower or its connector; start with "
                "--enable-tower-connector-lora, or train one without such modules (peft's target_modules)."
            )
        why = f" ({reason})" if reason else ""
        near = get_close_matches(module, list(self._known.values()), n=3, cutoff=0.5)
        hint = f" Names like it are {', '.join(near)}." if near else ""
        return f"Adapter '{name}' changes {module}, but the model has no such matrix{why}.{hint}"


def _shape_of(change: ModuleChange) -> tuple[int, ...]:
    """Return the shape (N, K) of the changed matrix, as far as the adapter shows it, or that of a norm's weight."""
    if change.weight is not None:
        return tuple(change.weight.shape)
    rows = next((len(one) for one in (change.b, change.magnitude, change.bias) if one is not None), 1)
    columns = 1 if change.a is None else int(change.a.shape[1])
    return rows, columns
