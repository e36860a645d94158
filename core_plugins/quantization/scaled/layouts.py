"""The layouts: 8-bit floats and integers with a scale of the tensor, a row or a block, and 4-bit floats in blocks.

Never does: read a declaration. Called by: methods whose checkpoints store matrices so.

fp8:   `weight` float8 [N, K] and `weight_scale` (one, [N], [N, 1], or one a block of rows and columns), or its other name
       `weight_scale_inv`, which multiplies as well.
int8:  `weight` int8 [N, K] and `weight_scale` of the same shapes but for blocks.
mxfp4: `weight_blocks` uint8 [N, K / 32, 16] and `weight_scales` uint8 [N, K / 32]; or `weight_packed` uint8 [N, K / 2] and
       `weight_scale`. The low nibble is the even input. A scale is 2^(byte - 127).
nvfp4: `weight` or `weight_packed` uint8 [N, K / 2], `weight_scale` float8 [N, K / 16], and a scale of the tensor: one that
       multiplies, `weight_scale_2`, or one that divides, `weight_global_scale`.
`input_scale`, the size of inputs that somebody measured, is read by nobody: inputs are rounded by their own sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.api.specs import Activation, PartPlan, Unsupported
from core_plugins.quantization.declared.part import StoredPart

if TYPE_CHECKING:
    from torch import Tensor

    from core.weights.formats import CanonicalWeight

SCALES: Final = ("weight_scale", "weight_scale_inv")
NARROW: Final = {"F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2"}
UNREAD: Final = ("input_scale", "input_global_scale", "activation_scale", "activation_scale_ub", "input_scale_ub")
"""Sizes of inputs: planned as read, so that nobody takes them for forgotten, and not used."""
FLOAT_SCALE_BYTES: Final = 4
MX_BLOCK: Final = 32
NV_BLOCK: Final = 16


@dataclass(frozen=True, slots=True)
class Fp8Layout:
    """8-bit floats.

    block: (rows, columns) that share a scale; None: what the scale's shape says, without blocks.
    activation: precision of the inputs.
    """

    block: tuple[int, int] | None
    activation: Activation

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """See `Layout`."""
        info = part.tensors["weight"]
        n, k = part.shape
        if tuple(info.shape) != part.shape:
            return _wrong_shape(part, "weight", part.shape)
        scale = _scale_of(part)
        if scale is None:
            return Unsupported(f"module '{part.own_name}' has no {' or '.join(SCALES)} beside its weight")
        groups = 1
        shape = tuple(part.tensors[scale].shape)
        if _is_blocked(part, shape):
            if self.block is None:
                return Unsupported(
                    f"module '{part.own_name}' has scales of shape {list(shape)}, but the declaration names no "
                    "weight_block_size"
                )
            rows, columns = self.block
            if shape != (-(-n // rows), -(-k // columns)):
                return _wrong_shape(part, scale, (-(-n // rows), -(-k // columns)))
            groups = shape[1]
        form = NARROW[info.dtype]
        return PartPlan(
            reads=part.names("weight", scale, *UNREAD),
            format=form,
            activation=self.activation,
            fuse_key=f"{form}/{self._group_size(part, groups)}/{self.activation}",
            nbytes=n * k + n * groups * FLOAT_SCALE_BYTES,
            shard_multiple=1 if groups == 1 else self._group_size(part, groups),
        )

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """See `Layout`."""
        from core.weights.formats import FP8

        values = tensors["weight"].clone()
        scale = tensors[_scale_of(part) or ""]
        block = self.block if _is_blocked(part, tuple(scale.shape)) else None
        return FP8.from_scale(values, scale, block)

    def _group_size(self, part: StoredPart, groups: int) -> int:
        if self.block is None or groups == 1:
            return part.shape[1]
        return self.block[1]


@dataclass(frozen=True, slots=True)
class Int8Layout:
    """Signed bytes with a scale of the tensor or of each row. activation: precision of the inputs."""

    activation: Activation

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """See `Layout`."""
        n, k = part.shape
        if tuple(part.tensors["weight"].shape) != part.shape:
            return _wrong_shape(part, "weight", part.shape)
        scale = _scale_of(part)
        if scale is None:
            return Unsupported(f"module '{part.own_name}' has no {' or '.join(SCALES)} beside its weight")
        return PartPlan(
            reads=part.names("weight", scale, *UNREAD),
            format="int8_channel",
            activation=self.activation,
            fuse_key=f"int8_channel/{self.activation}",
            nbytes=n * k + n * FLOAT_SCALE_BYTES,
        )

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """See `Layout`."""
        from core.weights.formats import Int8Channel

        n, _ = part.shape
        scale = tensors[_scale_of(part) or ""].float()
        if scale.numel() not in (1, n):
            raise ValueError(f"has scales of shape {list(scale.shape)}; expected one, or one for each of {n} rows")
        by_row = scale.reshape(-1, 1).expand(n, 1).contiguous()
        return Int8Channel(tensors["weight"].clone(), by_row)


@dataclass(frozen=True, slots=True)
class Mxfp4Layout:
    """4-bit floats with a power of two for 32 inputs. activation: precision of the inputs."""

    activation: Activation

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """See `Layout`."""
        n, k = part.shape
        if k % MX_BLOCK:
            return Unsupported(f"module '{part.own_name}' has {k} inputs; mxfp4 needs a multiple of {MX_BLOCK}")
        values, scales = _mx_names(part)
        expected = (n, k // MX_BLOCK, MX_BLOCK // 2) if values == "weight_blocks" else (n, k // 2)
        if tuple(part.tensors[values].shape) != expected:
            return _wrong_shape(part, values, expected)
        if scales not in part.tensors or tuple(part.tensors[scales].shape) != (n, k // MX_BLOCK):
            return _wrong_shape(part, scales, (n, k // MX_BLOCK))
        return PartPlan(
            reads=part.names(values, scales, *UNREAD),
            format="mxfp4",
            activation=self.activation,
            fuse_key=f"mxfp4/{self.activation}",
            nbytes=n * (k // 2 + k // MX_BLOCK),
            shard_multiple=MX_BLOCK,
        )

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """See `Layout`."""
        import torch

        from core.weights.formats import Codebook

        n, k = part.shape
        values, scales = _mx_names(part)
        codes = tensors[values].reshape(n, k // 2).clone()
        powers = tensors[scales].view(torch.uint8).clone()
        return Codebook("mxfp4", MX_BLOCK, codes, powers)


@dataclass(frozen=True, slots=True)
class Nvfp4Layout:
    """4-bit floats with an 8-bit float for 16 inputs, and a scale of the tensor. activation: precision of the inputs."""

    activation: Activation

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """See `Layout`."""
        n, k = part.shape
        if k % NV_BLOCK:
            return Unsupported(f"module '{part.own_name}' has {k} inputs; nvfp4 needs a multiple of {NV_BLOCK}")
        values = _nv_values(part)
        if tuple(part.tensors[values].shape) != (n, k // 2):
            return _wrong_shape(part, values, (n, k // 2))
        scale = part.tensors.get("weight_scale")
        if scale is None or tuple(scale.shape) != (n, k // NV_BLOCK):
            return _wrong_shape(part, "weight_scale", (n, k // NV_BLOCK))
        return PartPlan(
            reads=part.names(values, "weight_scale", "weight_scale_2", "weight_global_scale", *UNREAD),
            format="nvfp4",
            activation=self.activation,
            fuse_key=f"nvfp4/{self.activation}",
            nbytes=n * (k // 2 + k // NV_BLOCK + FLOAT_SCALE_BYTES),
            shard_multiple=NV_BLOCK,
        )

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """See `Layout`."""
        import torch

        from core.weights.formats import Codebook

        n, _ = part.shape
        whole = torch.ones(1)
        if "weight_scale_2" in tensors:
            whole = tensors["weight_scale_2"].float().reshape(-1)
        elif "weight_global_scale" in tensors:
            whole = 1.0 / tensors["weight_global_scale"].float().reshape(-1)
        if whole.numel() != 1 or not bool(whole.isfinite().all()):
            raise ValueError(f"has a scale of the tensor of {whole.numel()} numbers, expected one that is finite")
        by_row = whole.reshape(1, 1).expand(n, 1).contiguous()
        codes = tensors[_nv_values(part)].view(torch.uint8).clone()
        return Codebook("nvfp4", NV_BLOCK, codes, tensors["weight_scale"].clone(), by_row)


def _scale_of(part: StoredPart) -> str | None:
    for name in SCALES:
        if name in part.tensors:
            return name
    return None


def _is_blocked(part: StoredPart, shape: tuple[int, ...]) -> bool:
    """Whether scales of this shape belong to blocks: they are neither one nor one a row."""
    return len(shape) == 2 and shape not in ((1, 1), (part.shape[0], 1))


def _mx_names(part: StoredPart) -> tuple[str, str]:
    """Of codes and scales."""
    if "weight_blocks" in part.tensors:
        return "weight_blocks", "weight_scales"
    packed = "weight_packed" if "weight_packed" in part.tensors else "weight"
    return packed, "weight_scale"


def _nv_values(part: StoredPart) -> str:
    return "weight_packed" if "weight_packed" in part.tensors else "weight"


def _wrong_shape(part: StoredPart, suffix: str, expected: tuple[int, ...]) -> Unsupported:
    info = part.tensors.get(suffix)
    if info is None:
        return Unsupported(f"module '{part.own_name}' has no tensor '{suffix}', expected one of shape {list(expected)}")
    return Unsupported(
        f"tensor '{part.own_name}.{suffix}' has shape {list(info.shape)}, expected {list(expected)} by the configuration"
    )
