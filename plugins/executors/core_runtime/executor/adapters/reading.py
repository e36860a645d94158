"""Reading of an adapter: from its files to what the layers of the model compute with.

Owns: the order of reading, fitting and packing, and what an executor reports of an adapter. Never does: know a format (plugins
of kind `adapter`), place an adapter, or run in a step. Called by: the worker, in a thread next to steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from core.api.adapters import AdapterFacts, AdapterSource
from core.api.errors import UserError
from core.api.specs import LayerSpec
from core_runtime.contracts import AdapterFormat
from core_runtime.contracts.low_rank import PackedLowRank
from core_runtime.executor.adapters.norms import norm_changes
from core_runtime.executor.adapters.outer import OuterChanges
from core_runtime.executor.adapters.own_tensors import OwnTensors
from core_runtime.executor.adapters.placed import PlacedAdapters, ReadAdapter
from core_runtime.executor.adapters.share import AdapterShare
from core_runtime.executor.adapters.towers import AdaptedTower, TowerPart, divided
from core_runtime.executor.adapters.updates import update_of
from core_runtime.executor.adapters.whole import whole_changes
from core_runtime.executor.host_memory import trim_memory
from core_runtime.models.adapters.fitting import Fitted, Fitting
from core_runtime.models.adapters.layers import LayerKey
from core_runtime.specs.model_part import Part
from core_runtime.weights.adapter_contents import AdapterContents, ModuleChange


class AdapterReader:
    """Reads adapters for one model.

    formats: formats by name.
    fitting: fits adapters to the model.
    placed: keeps what was read.
    outer: prepares changes outside of blocks.
    own: reads the base model's own tensors.
    share: what this rank holds of adapters.
    tower: keeps the part of an adapter that changes the tower; None: such an adapter is refused.
    """

    def __init__(
        self,
        formats: Mapping[str, AdapterFormat],
        fitting: Fitting,
        placed: PlacedAdapters,
        outer: OuterChanges,
        own: OwnTensors,
        share: AdapterShare | None = None,
        tower: AdaptedTower | None = None,
    ) -> None:
        self._formats = formats
        self._fitting = fitting
        self._placed = placed
        self._outer = outer
        self._own = own
        self._share = share or AdapterShare(fitting.spec, Part())
        self._tower = tower

    def read(self, source: AdapterSource) -> AdapterFacts:
        """Read an adapter and keep it. Raises UserError, in one sentence, when it cannot be used.

        What was read on the way is as large as the adapter, and its memory is returned.
        """
        facts = self._kept(source)
        trim_memory()
        return facts

    def _kept(self, source: AdapterSource) -> AdapterFacts:
        contents = self._contents(source)
        known = self._placed.find(contents.digest)
        if known is not None:
            return known.facts
        others: tuple[ModuleChange, ...] = ()
        if self._tower is not None:
            contents, others = divided(source.name, contents)
        fitted = Fitted() if others and not contents.changes else self._fitting.fit(source.name, contents)
        share = self._share
        share.check(source.name, fitted)
        self._drop_copies(fitted)
        try:
            layers = self._packed(fitted)
            spec = self._fitting.spec
            embedding = self._outer.embedding(share.embedding(fitted.embedding), spec.embedding(), self._own)
            head, packed_head = self._outer.head(share.head(fitted.head), spec.head(), self._own, share)
            classes = self._outer.classes(fitted.class_layers, fitted.class_norms)
            norms = share.norms(norm_changes(fitted.norms, self._outer.device), fitted.norms)
            whole = share.cut_whole(whole_changes(share.whole(fitted.whole), self._own, self._outer.device))
        except ValueError as error:
            raise UserError(f"Adapter '{source.name}' does not fit the model: {error}.") from error
        parts = (*layers.values(), *norms.values(), *whole.values(), embedding, head, packed_head, classes)
        part = TowerPart() if self._tower is None else self._tower.keep(source.name, contents.digest, others)
        facts = AdapterFacts(
            digest=contents.digest,
            rank=max(fitted.rank, part.rank),
            nbytes=part.nbytes + sum(one.nbytes for one in parts if one is not None),
            invocation_tokens=contents.invocation_tokens,
        )
        changes = [part.change for parts in fitted.layers.values() for part in parts]
        gains = any(change.magnitude is not None for change in changes)
        experts = share.expert_blocks(fitted)
        self._placed.keep(
            ReadAdapter(facts, layers, gains, embedding, head, packed_head, classes, norms, whole, experts)
        )
        return facts

    def _contents(self, source: AdapterSource) -> AdapterContents:
        for form in self._formats.values():
            if form.claims(source.path):
                return form.read(source.path)
        known = ", ".join(self._formats) or "none"
        raise UserError(
            f"Adapter '{source.name}': {source.path} holds no adapter of a known format ({known}); expected a directory with "
            "adapter_config.json, or a GGUF file of an adapter."
        )

    def _drop_copies(self, fitted: Fitted) -> None:
        """Forget whole matrices that are equal to the base model's: peft saves those of an embedding that it changes."""
        spec = self._fitting.spec
        if fitted.embedding is not None and fitted.embedding.weight is not None:
            fitted.embedding = self._without_copy(fitted.embedding, spec.embedding())
        if fitted.head is not None and fitted.head.weight is not None:
            fitted.head = self._without_copy(fitted.head, spec.head())

    def _without_copy(self, change: ModuleChange, part: LayerSpec) -> ModuleChange:
        own = self._own([(part, ())])[f"{part.name}.weight"]
        assert change.weight is not None, "the caller has looked"
        rounded = change.weight.to(self._outer.dtype).float()
        return replace(change, weight=None) if torch.equal(rounded, own) else change

    def _packed(self, fitted: Fitted) -> dict[LayerKey, PackedLowRank]:
        """Return the changes of all layers of this rank's blocks, as their tables hold them."""
        layers = self._share.layers(fitted)
        wanted = []
        for parts in layers.values():
            for part, _ in parts:
                if part.change.magnitude is not None or part.change.bias is not None:
                    wanted.append((part.part.part, part.part.orders))
        own = self._own(wanted) if wanted else {}
        packed = {}
        for key, parts in layers.items():
            updates = []
            for part, mine in parts:
                update = update_of(part.change, part.part.part, mine.first, own, self._placed.dtype)
                updates.append(self._share.cut(update, mine.part))
            packed[key] = self._placed.pack(key, updates)
        return packed
