"""Reading of an adapter: from its files to what the tables of the model's layers hold.

Owns: the order of reading, fitting and packing, and what an executor reports of an adapter. Never does: know a format (plugins
of kind `adapter`), place an adapter, or run in a step. Called by: the executor, in a thread next to steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from core.api.adapters import AdapterFacts, AdapterSource
from core.api.errors import UserError
from core_runtime.contracts import AdapterFormat
from core_runtime.executor.adapters.placed import PlacedAdapters, ReadAdapter
from core_runtime.models.adapters.fitting import Fitting, PartChange
from core_runtime.weights.adapter_contents import AdapterContents
from core_runtime.weights.low_rank import LowRank

OwnTensors = Callable[[Sequence[PartChange]], Mapping[str, Tensor]]
"""Reads the matrices and biases of some parts from the base model, float32 by canonical name."""


class AdapterReader:
    """Reads adapters for one model.

    formats: formats by name.
    fitting: fits adapters to the model.
    placed: keeps what was read.
    own: reads the base model's own tensors.
    device: device of the tables.
    """

    def __init__(
        self,
        formats: Mapping[str, AdapterFormat],
        fitting: Fitting,
        placed: PlacedAdapters,
        own: OwnTensors,
        device: torch.device,
    ) -> None:
        self._formats = formats
        self._fitting = fitting
        self._placed = placed
        self._own = own
        self._device = device

    def read(self, source: AdapterSource) -> AdapterFacts:
        """Read an adapter and keep it. Raises UserError, in one sentence, when it cannot be used."""
        contents = self._contents(source)
        known = self._placed.find(contents.digest)
        if known is not None:
            return known.facts
        layers = self._fitting.fit(source.name, contents)
        changes = [change for layer in layers.values() for change in layer]
        own = self._own([change for change in changes if _needs_own(change)])
        packed = {}
        for key, parts in layers.items():
            updates = [self._update(part, own) for part in parts]
            try:
                packed[key] = self._placed.tables[key].pack(updates)
            except ValueError as error:
                raise UserError(f"Adapter '{source.name}' does not fit the model: {error}.") from error
        facts = AdapterFacts(
            digest=contents.digest,
            rank=max(change.rank for change in changes),
            nbytes=sum(one.nbytes for one in packed.values()),
            invocation_tokens=contents.invocation_tokens,
        )
        gains = any(change.change.magnitude is not None for change in changes)
        self._placed.keep(ReadAdapter(facts, packed, gains))
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

    def _update(self, part: PartChange, own: Mapping[str, Tensor]) -> LowRank:
        """Return the change of a part as kernels compute it."""
        change = part.change
        spec = part.part.part
        rows, inputs = spec.shape
        a = torch.zeros(0, inputs) if change.a is None else change.a.float()
        b = torch.zeros(rows, 0) if change.b is None else change.b.float()
        gain: Tensor | None = None
        shift: Tensor | None = None
        if change.added_bias is not None:
            shift = change.scale * change.added_bias.float()
        if change.magnitude is not None:
            changed = own[f"{spec.name}.weight"] + change.scale * (b @ a)
            gain = change.magnitude.float() / changed.norm(dim=1)
            shift = None if shift is None else gain * shift
        shift = self._with_bias(part, own, gain, shift)
        dtype = self._placed.dtype
        return LowRank(
            a.to(self._device, dtype),
            b.to(self._device, dtype),
            change.scale,
            part.part.first,
            None if gain is None else gain.to(self._device),
            None if shift is None else shift.to(self._device),
        )

    def _with_bias(
        self, part: PartChange, own: Mapping[str, Tensor], gain: Tensor | None, shift: Tensor | None
    ) -> Tensor | None:
        """Return the shift of the outputs that also replaces the layer's bias, and leaves it as it is under a gain."""
        spec = part.part.part
        new = part.change.bias
        if new is None and gain is None:
            return shift
        old = own.get(f"{spec.name}.bias")
        # y holds the old bias: gain * y then holds gain * old.
        left = torch.zeros(spec.shape[0]) if old is None else old
        wanted = left if new is None else new.float()
        more = wanted - (left if gain is None else gain * left)
        return more if shift is None else shift + more


def _needs_own(change: PartChange) -> bool:
    """Whether the change depends on the base model's own tensors."""
    return change.change.magnitude is not None or change.change.bias is not None
