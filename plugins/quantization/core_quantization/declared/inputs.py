"""The rounding of inputs that a checkpoint declares, for `--quantization-config.activation declared`.

Owns: the description of such a rounding without torch, and the layout that adds it to another one. Never does: read a
declaration, or round. Called by: choices of layouts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from core.api.errors import UserError
from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.arguments import DECLARED
from core_quantization.declared.layout import Layout
from core_quantization.declared.part import StoredPart
from core_quantization.declared.stored import FLOATS, Wanted, one_number, problem

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight
    from core_runtime.weights.input_rounding import InputRounding, Rule

ZEROS: Final = ("I8", "I32", "I64", "U8", "F8_E4M3", *FLOATS)
"""Types of zero points."""


@dataclass(frozen=True, slots=True)
class InputScheme:
    """How the inputs of a module are rounded.

    numbers, rule, group_size: see `core_runtime.weights.input_rounding.InputRounding`.
    scales: suffixes that the tensor with the static scale may have; empty: the rule needs none.
    divisor: whether that tensor holds the inverse of what the rule needs.
    zeros: suffix of the tensor with the zero point, which may be absent; empty: there is none.
    bound: largest magnitude that counts for a scale.
    bounds: suffixes that a tensor with this bound may have.
    """

    numbers: str
    rule: Rule
    group_size: int = 0
    scales: tuple[str, ...] = ()
    divisor: bool = False
    zeros: str = ""
    bound: float = math.inf
    bounds: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return what distinguishes weights whose inputs are rounded otherwise."""
        return f"{self.numbers}/{self.rule}/{self.group_size}/{self.bound}"

    def group_of(self, part: StoredPart) -> int:
        """Return the inputs of a part that share a scale: a group may be larger than the row."""
        return min(self.group_size, part.shape[1])

    def found(self, part: StoredPart, names: tuple[str, ...]) -> str | None:
        """Return the first of these tensors that a module has."""
        return next((name for name in names if name in part.tensors), None)

    def rounding(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> InputRounding:
        """Return the rounding with the module's own scale. Raises ValueError for a scale that cannot be one."""
        from core_runtime.weights.input_rounding import InputRounding

        scale, bound = 1.0, self.bound
        name = self.found(part, self.scales)
        if name is not None:
            stored = _number(name, tensors[name])
            scale = float(_float32(1 / stored)) if self.divisor else stored
        name = self.found(part, self.bounds)
        if name is not None:
            bound = _number(name, tensors[name])
        zero = 0
        if self.zeros in part.tensors:
            zero = int(tensors[self.zeros].float().item())
        return InputRounding(self.numbers, self.rule, self.group_of(part), scale, zero, bound)


class RoundsInputs:
    """A layout whose module's inputs are rounded as well, of the kind `Layout`.

    inner: layout of the matrix, planned for inputs that are not rounded.
    scheme: the rounding.
    """

    def __init__(self, inner: Layout, scheme: InputScheme) -> None:
        self._inner = inner
        self._scheme = scheme

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        scheme = self._scheme
        if scheme.group_size and part.shape[1] % scheme.group_of(part):
            return Unsupported(
                f"its {part.shape[1]} inputs cannot be rounded in groups of {scheme.group_size}, as the checkpoint declares; "
                "leave --quantization-config.activation out"
            )
        wanted = []
        if scheme.scales:
            name = scheme.found(part, scheme.scales)
            if name is None:
                return Unsupported(
                    f"module '{part.own_name}' has no tensor '{scheme.scales[0]}', the scale of its inputs; leave "
                    "--quantization-config.activation out"
                )
            wanted.append(Wanted(name, FLOATS, one_number()))
        name = scheme.found(part, scheme.bounds)
        if name is not None:
            wanted.append(Wanted(name, FLOATS, one_number()))
        if scheme.zeros in part.tensors:
            wanted.append(Wanted(scheme.zeros, ZEROS, one_number()))
        wrong = problem(part, wanted)
        if wrong is not None:
            return Unsupported(wrong)
        plan = self._inner.plan(part)
        if isinstance(plan, Unsupported):
            return plan
        reads = dict.fromkeys((*plan.reads, *part.names(*(tensor.suffix for tensor in wanted))))
        # Experts have scales of their own, so `ordered`: they are not stacked to one weight.
        return msgspec.structs.replace(
            plan, reads=tuple(reads), fuse_key=f"{plan.fuse_key}/inputs/{scheme.key}", ordered=True
        )

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight with its rounding, see `Layout`."""
        from core_runtime.weights.prepared_inputs import PreparedInputs

        rounding = self._scheme.rounding(part, tensors)
        return PreparedInputs(self._inner.pack(part, tensors), (rounding,))


def rounds_inputs(
    layout: Layout | Unsupported | None, scheme: InputScheme | None, part: StoredPart
) -> Layout | Unsupported | None:
    """Return the layout of a part with the rounding of its inputs, where it has inputs and a scheme."""
    if layout is None or isinstance(layout, Unsupported) or scheme is None or part.role == "embedding":
        return layout
    return RoundsInputs(layout, scheme)


def none_declared(method: str) -> UserError:
    """Return the error for a checkpoint of `method` that declares no rounding of inputs."""
    return UserError(
        f"--quantization-config.activation {DECLARED}: the checkpoint declares no rounding of inputs ({method}); leave the "
        "argument out."
    )


def _number(name: str, tensor: Tensor) -> float:
    """Return a positive number. Raises ValueError."""
    value = float(tensor.float().item())
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"has a '{name}' of {value}; expected a positive number")
    return value


def _float32(value: float) -> Tensor:
    """Return a number rounded to float32, as tools compute with it."""
    import torch

    return torch.tensor(value, dtype=torch.float32)
