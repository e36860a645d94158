"""The fitting of an adapter to a model: shapes and orders of rows.

Owns: the checks of numbers and ranks, and the order of rows. Never does: know a format of files, find a name (`places` does),
or compute. Called by: the executor's reading of adapters, in a thread next to steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from core.api.errors import UserError
from core.api.specs import AttentionSpec, Groups, RotaryPairs, RowOrder
from core_runtime.models.adapters.layers import ABSORBED, AdaptedNorm, AdaptedPart, LayerKey
from core_runtime.models.adapters.places import EMBEDDING, HEAD, NamesOf, Places
from core_runtime.models.adapters.shapes import VECTORS, check_norm, check_shapes, of_whole, outputs_of
from core_runtime.models.adapters.whole_modules import WholeModule
from core_runtime.models.tensors.row_order import row_order
from core_runtime.models.tensors.weight_map import TensorView, WeightMap
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.weights.adapter_contents import AdapterContents, ModuleChange


@dataclass(frozen=True, slots=True)
class PartChange:
    """The change of one part of a layer, its outputs in the engine's order.

    module: name of the module, for messages.
    """

    part: AdaptedPart
    module: str
    change: ModuleChange


class NormPart(NamedTuple):
    """The change of a norm, in the checkpoint's order."""

    norm: AdaptedNorm
    change: ModuleChange


class WholePart(NamedTuple):
    """The change of a module of which the adapter has whole tensors."""

    module: WholeModule
    change: ModuleChange


@dataclass(slots=True)
class Fitted:
    """The changes of one adapter, by what they change in the model.

    layers: changes of each layer of a block.
    embedding, head: changes of the embedding and of the output head, or None.
    class_layers: changes of layers of the head for classes, by their number. class_norms: the same for their norms.
    norms: changes of norms, by key.
    whole: changes of modules of which the adapter has whole tensors, by block.
    """

    layers: dict[LayerKey, list[PartChange]] = field(default_factory=dict)
    embedding: ModuleChange | None = None
    head: ModuleChange | None = None
    class_layers: dict[int, ModuleChange] = field(default_factory=dict)
    class_norms: dict[int, ModuleChange] = field(default_factory=dict)
    norms: dict[LayerKey, NormPart] = field(default_factory=dict)
    whole: dict[int, list[WholePart]] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Largest rank of all changes."""
        changes = [part.change for parts in self.layers.values() for part in parts]
        changes += [part.change for parts in self.whole.values() for part in parts]
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
        self._places = Places(spec, names, names_of)
        self._max_rank = max_rank
        self._targets = tuple(targets)

    def fit(self, name: str, contents: AdapterContents) -> Fitted:
        """Return the changes of the model. name: the adapter's, for messages. Raises UserError, in one sentence."""
        if not contents.changes:
            raise UserError(f"Adapter '{name}' changes no module, so its answers would be those of the base model.")
        for change in contents.changes:
            self._check(name, change)
        far = [token for token in contents.invocation_tokens if token >= self.spec.vocab_size]
        if far:
            raise UserError(
                f"Adapter '{name}' is activated by token {far[0]}; the vocabulary of the model has {self.spec.vocab_size}."
            )
        found = Fitted()
        changed: dict[str, str] = {}
        for change, canonical, view in self._places.of(name, contents.changes):
            if canonical in changed:
                raise UserError(
                    f"Adapter '{name}' changes {changed[canonical]} twice, the second time as {change.module}."
                )
            changed[canonical] = change.module
            self._add(name, found, change, canonical, view)
        self._tie(name, found, contents)
        if contents.invocation_tokens:
            _check_activated(name, found)
        return found

    def _add(self, name: str, found: Fitted, change: ModuleChange, canonical: str, view: TensorView) -> None:
        """Add the change of one canonical tensor."""
        if change.a is not None:
            self._check_rank(name, change.module, len(change.a))
        part = self._places.parts.get(canonical.removesuffix(".weight"))
        if part is not None:
            if change.weight is not None or change.tokens is not None:
                raise UserError(
                    f"Adapter '{name}' replaces {change.module}; norms, embedding, output head and heads for classes may be "
                    "replaced, other modules may not."
                )
            fitted = self._fitted(name, part, change, view)
            found.layers.setdefault(part.layer, []).append(PartChange(part, change.module, fitted))
        elif canonical in self._places.norms:
            norm = self._places.norms[canonical]
            check_norm(name, change, norm.part)
            weight = None if change.weight is None else view.of(change.weight)
            found.norms[norm.key] = NormPart(norm, replace(change, weight=weight))
        elif canonical in self._places.whole:
            module = self._places.whole[canonical]
            fitted = of_whole(name, module, change, view)
            found.whole.setdefault(module.block, []).append(WholePart(module, fitted))
        elif canonical in self._places.class_norms:
            layer = self._places.class_norms[canonical]
            assert self.spec.pooling_head is not None, "a layer of the head was found"
            of_layer = self.spec.pooling_head.layers[layer].norm
            assert of_layer is not None, "a norm of the layer was found"
            check_norm(name, change, of_layer)
            found.class_norms[layer] = change
        elif canonical in self._places.class_layers:
            layer = self._places.class_layers[canonical]
            assert self.spec.pooling_head is not None, "a layer of the head was found"
            check_shapes(name, change, self.spec.pooling_head.layers[layer].shape)
            found.class_layers[layer] = change
        else:
            self._add_outer(name, found, change, self._places.outer[canonical])

    def _add_outer(self, name: str, found: Fitted, change: ModuleChange, place: str) -> None:
        """Add the change of embedding or head."""
        vocabulary, size = self.spec.embedding().shape
        if place == HEAD and not self.spec.causal_lm:
            raise UserError(
                f"Adapter '{name}' changes {change.module}, but the model is served without an output head."
            )
        if place == EMBEDDING and (change.bias is not None or change.added_bias is not None):
            raise UserError(f"Adapter '{name}' has a bias for {change.module}, which is an embedding and has none.")
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
        check_shapes(name, change, (size, vocabulary) if place == EMBEDDING else (vocabulary, size), (vocabulary, size))
        if place == EMBEDDING:
            found.embedding = change
        else:
            found.head = change

    def _tie(self, name: str, found: Fitted, contents: AdapterContents) -> None:
        """Let a head that is the embedding's matrix change like it, where peft does so."""
        change = found.embedding
        if not self.spec.tied or not self.spec.causal_lm or change is None or found.head is not None:
            return
        tied = ModuleChange(change.module, tokens=change.tokens)
        if contents.ties:
            if change.magnitude is not None:
                raise UserError(
                    f"Adapter '{name}' has DoRA for {change.module} and ensure_weight_tying: the head would change like it, "
                    "but lengths of an embedding are those of its columns; train the adapter without one of the two."
                )
            tied = replace(tied, weight=change.weight, scale=change.scale)
            if change.a is not None and change.b is not None:
                tied = replace(tied, a=change.b.T.contiguous(), b=change.a.T.contiguous())
        if tied.tokens is not None or tied.weight is not None or tied.a is not None:
            found.head = tied

    def _check(self, name: str, change: ModuleChange) -> None:
        """Check what needs no model: numbers and targets."""
        for role, tensor in change.tensors().items():
            # `isfinite` is twenty times as slow in bfloat16; both ends are NaN where a number is
            if tensor.numel() and not all(math.isfinite(float(end)) for end in tensor.aminmax()):
                raise UserError(f"Adapter '{name}': {role} of {change.module} has numbers that are not finite.")
        allowed = not self._targets or any(_ends_with(change.module, target) for target in self._targets)
        if not allowed:
            raise UserError(
                f"Adapter '{name}' changes {change.module}, which --lora-target-modules {' '.join(self._targets)} leaves out."
            )

    def _check_rank(self, name: str, module: str, rank: int) -> None:
        if rank > self._max_rank:
            raise UserError(
                f"Adapter '{name}': the rank of {module} is {rank}; --max-lora-rank allows {self._max_rank}."
            )

    def _fitted(self, name: str, part: AdaptedPart, change: ModuleChange, view: TensorView) -> ModuleChange:
        """Return the change of one part, with its outputs in the engine's order."""
        rows, inputs = part.part.shape
        b = outputs_of(change.b, view)
        mixer = self.spec.blocks[part.layer.block].mixer
        if change.paired and b is not None and len(b) == rows and isinstance(mixer, AttentionSpec):
            b = b[row_order((RotaryPairs(mixer.head_size, 0, mixer.head_size),), rows)]
        problem = ""
        if change.a is not None and change.a.shape[1] != inputs:
            problem = f"A of {change.module} has {change.a.shape[1]} inputs, the model's matrix has {inputs}"
        elif b is not None and b.shape[0] != rows:
            problem = f"B of {change.module} has {b.shape[0]} outputs, the model's matrix has {rows}"
        if change.bias is not None and not part.part.bias:
            problem = f"it has a bias for {change.module}, which has none in the model"
        if problem:
            raise UserError(f"Adapter '{name}': {problem}; the adapter belongs to another base model.")
        vectors = {what: _ordered(_vector(name, change, what, rows, view), part.orders) for what in VECTORS}
        return ModuleChange(
            change.module,
            change.a,
            _ordered(b, [one for one in part.orders if not (change.parted and isinstance(one, Groups))]),
            change.scale,
            magnitude=vectors["magnitude"],
            added_bias=vectors["added_bias"],
            bias=vectors["bias"],
        )


def _vector(name: str, change: ModuleChange, what: str, rows: int, view: TensorView) -> Tensor | None:
    """Return one of the `VECTORS` of a change, [rows], for a part of the model. Raises UserError for another shape."""
    vector = outputs_of(getattr(change, what), view)
    if vector is not None and vector.shape != (rows,):
        raise UserError(
            f"Adapter '{name}': {what.replace('_', ' ')} of {change.module} has shape {list(vector.shape)}, expected "
            f"[{rows}]; the adapter belongs to another base model."
        )
    return vector


def _check_activated(name: str, found: Fitted) -> None:
    """Raise UserError where an adapter that begins in the middle of a prompt changes what is computed for a whole sequence."""
    absorbed = [parts[0].module for key, parts in found.layers.items() if key.role == ABSORBED]
    if absorbed:
        raise UserError(
            f"Adapter '{name}' is activated by tokens and changes {absorbed[0]}, by which latent attention multiplies queries "
            "of all positions at once; it can change other modules."
        )
    recurrent = [one.change.module for parts in found.whole.values() for one in parts if one.module.is_recurrent]
    if recurrent:
        raise UserError(
            f"Adapter '{name}' is activated by tokens and changes {recurrent[0]}, of which a sequence has one for all tokens "
            "of a step; it can change other modules."
        )


def _ends_with(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")


def _ordered(tensor: Tensor | None, orders: Sequence[RowOrder]) -> Tensor | None:
    if tensor is None or not orders:
        return tensor
    order: torch.Tensor = row_order(orders, len(tensor))
    return tensor[order]
