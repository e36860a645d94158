"""The method of online quantization: plain tensors become canonical weights of one scheme while they load.

Owns: the scheme of each part. Never does: read a file, or keep a matrix twice. Called by: the memory plan (`plan`),
loading (`pack`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api.errors import CheckpointError
from core.api.specs import Activation, DensePlan, LayerSpec, PartPlan, Unsupported
from core_quantization.online.schemes import Scheme
from core_runtime.specs.checkpoint import CheckpointManifest

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

PLAIN = ("F32", "F16", "BF16", "F64")


class OnlineMethod:
    """The quantization method for plain checkpoints, of the kind `quantization`.

    manifest: the checkpoint's tensors.
    linear: the scheme of the layers.
    head: the scheme of the embedding and the output head; None: left plain.
    activations: by scheme, the precision to which its inputs are rounded.
    ignore: parts whose name contains one of these are left plain.
    roles: roles of the parts that are rounded, such as `experts`; None: all.
    """

    def __init__(
        self,
        manifest: CheckpointManifest | None,
        linear: Scheme,
        head: Scheme | None,
        activations: dict[str, Activation],
        ignore: Sequence[str] = (),
        roles: Sequence[str] | None = None,
    ) -> None:
        self.manifest = manifest
        self.linear = linear
        self.head = head
        self.activations = activations
        self.ignore = tuple(ignore)
        self.roles = roles

    def plan(self, spec: LayerSpec) -> DensePlan | PartPlan | Unsupported:
        """Plan a part. Matrices have the scheme of their role."""
        name = f"{spec.name}.weight"
        info = self.manifest.tensors.get(name) if self.manifest is not None else None
        if info is not None and info.dtype not in PLAIN:
            plain = ", ".join(PLAIN)
            return Unsupported(f"tensor '{name}' has type {info.dtype}; only {plain} can be quantized")
        scheme = self._scheme(spec)
        if scheme is None:
            return DensePlan(reads=(name,))
        n, k = spec.shape
        if scheme.block and k % scheme.block:
            return Unsupported(
                f"its {k} inputs are not a multiple of {scheme.block}, the block of {scheme.name}; choose --quantization "
                f"int8 or fp8, or leave it plain with --quantization-config.ignore"
            )
        activation = self.activations[scheme.name]
        return PartPlan(
            reads=(name,),
            format=scheme.format,
            activation=activation,
            fuse_key=f"{scheme.format}/{activation}",
            nbytes=scheme.nbytes(n, k),
            shard_multiple=max(scheme.block, 1),
        )

    def pack(self, spec: LayerSpec, tensors: dict[str, Tensor]) -> CanonicalWeight:
        """Round the part's matrix. Raises CheckpointError when a value is not finite."""
        from core_quantization.online.rounding import quantize

        scheme = self._scheme(spec)
        assert scheme is not None
        name = f"{spec.name}.weight"
        try:
            return quantize(tensors[name], scheme.rounding)
        except ValueError as error:
            raise CheckpointError(f"Tensor '{name}' {error}; it cannot be quantized.") from error

    def _scheme(self, spec: LayerSpec) -> Scheme | None:
        """Return the scheme of a part; None: it stays plain."""
        if any(word in spec.name for word in self.ignore):
            return None
        if self.roles is not None and spec.role not in self.roles:
            return None
        if len(spec.shape) != 2:
            return None
        scheme = self.head if spec.role in ("embedding", "head") else self.linear
        if scheme is None:
            return None
        inputs = spec.shape[1]
        return scheme.form(inputs, self.activations[scheme.name])
