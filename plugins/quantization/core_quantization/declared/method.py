"""The quantization method of a checkpoint that declares its packing.

Owns: the choice of a part's layout, and the conversion of its tensors to a canonical weight. Never does: know a layout.
Called by: the memory plan (`plan`), loading (`pack`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from core.api.errors import CheckpointError
from core.api.specs import DensePlan, LayerSpec, PartPlan, Unsupported
from core_quantization.declared.layout import Layout
from core_quantization.declared.part import StoredPart, StoredParts
from core_runtime.specs.checkpoint import CheckpointManifest

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

PLAIN: Final = ("F32", "F16", "BF16", "F64")

Choose = Callable[[StoredPart], "Layout | Unsupported | None"]
"""Function that returns the layout of a part by the checkpoint's declaration; None: the part is plain."""


class DeclaredMethod:
    """The quantization method of one checkpoint, of the kind `quantization`.

    manifest: its tensors under canonical names.
    choose: see `Choose`.
    """

    def __init__(self, manifest: CheckpointManifest, choose: Choose) -> None:
        self._manifest = manifest
        self._parts = StoredParts(manifest)
        self._choose = choose

    def plan(self, spec: LayerSpec) -> DensePlan | PartPlan | Unsupported:
        """Return the layout's plan, or a plain one."""
        part = self._part(spec)
        layout = self._choose(part)
        if isinstance(layout, Unsupported):
            return layout
        if layout is not None:
            return _with_idle_bias(layout.plan(part), spec, part)
        name = f"{spec.name}.weight"
        info = part.tensors.get("weight")
        if info is not None and info.dtype not in PLAIN:
            return Unsupported(f"tensor '{name}' has type {info.dtype}, but the checkpoint declares it plain")
        return DensePlan(reads=(name,))

    def pack(self, spec: LayerSpec, tensors: dict[str, Tensor]) -> CanonicalWeight:
        """Return the layout's canonical weight. Raises CheckpointError when values or shapes are wrong."""
        part = self._part(spec)
        layout = self._choose(part)
        assert layout is not None and not isinstance(layout, Unsupported), "only layouts plan parts that are packed"
        by_suffix = {}
        for name, tensor in tensors.items():
            by_suffix[part.suffix(name)] = tensor
        try:
            _check_idle_bias(spec, by_suffix)
            weight = layout.pack(part, by_suffix)
        except ValueError as error:
            raise CheckpointError(f"{self._manifest.ref}: module '{part.own_name}' {error}.") from error
        problem = weight.problem()
        if problem is not None:
            raise CheckpointError(f"{self._manifest.ref}: module '{part.own_name}': {problem}; the file is damaged.")
        return weight

    def _part(self, spec: LayerSpec) -> StoredPart:
        rows, inputs = spec.shape[-2:]
        return self._parts.find(spec.name, (rows, inputs), spec.role)


def _with_idle_bias(plan: PartPlan | Unsupported, spec: LayerSpec, part: StoredPart) -> PartPlan | Unsupported:
    """Return the plan of a part whose model has no bias although its packer wrote one. The bias is read, to check that
    it is zero.
    """
    if spec.bias or isinstance(plan, Unsupported):
        return plan
    return msgspec.structs.replace(plan, reads=plan.reads + part.names("bias"))


def _check_idle_bias(spec: LayerSpec, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError for a nonzero bias in a part whose model has none."""
    bias = tensors.get("bias")
    if bias is not None and not spec.bias and bool(bias.any()):
        raise ValueError("has a bias that is not zero, though the model's configuration says that it has none")
