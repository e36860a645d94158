"""Transforms of compressed-tensors that run beside the weights (`transform_config`).

Owns: the keys of this declaration, the modules that a transform is of, and its tensors. Never does: rotate. Torch-free but
for `step`. Called by: the declaration, the choice of layouts, the layout of rotated matrices.

Transforms at `weight_input` and `weight_output` are part of the stored weights. Those of queries (`q_attn`) and of cached keys
(`k_cache`) by one orthonormal matrix leave their products as they are, so nothing is done for a pair of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from core_quantization.declared.part import StoredPart
from core_quantization.declared.patterns import any_means
from core_quantization.declared.refusal import Refusal, known_keys, mapping_at, names_at, whole_at
from core_quantization.declared.stored import FLOATS, Wanted

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.prepared_inputs import InputStep

USED: Final = ("type", "apply", "randomize", "head_dim", "precision")
NEUTRAL: Final[Mapping[str, str]] = MappingProxyType({"requires_grad": "of the training"})
STEP_USED: Final = ("targets", "location", "inverse", "ignore")
FAST: Final = "hadamard"
STORED: Final = ("random-hadamard", "random-matrix")
"""Kinds whose matrix is in the checkpoint."""
OFFLINE: Final = ("weight_input", "weight_output")
ONLINE: Final = ("input", "output")
PAIR: Final = ("q_attn", "k_cache")
PRECISIONS: Final = ("float32", "float64")
SIGNED: Final = 64
"""Stored Hadamard matrices whose side is a power of two from this on are Sylvester's with signs; others are of other orders."""
LARGEST: Final = 4096
"""Largest side of a stored matrix: it takes 64 MiB beside each module."""
AGAIN: Final = "quantize the model again without it"


@dataclass(frozen=True, slots=True)
class Transform:
    """One transform at one place.

    name: name of its scheme.
    kind: type of its matrix.
    size: numbers of a block; 0: all.
    randomized: whether the order of the matrix is in the checkpoint.
    location: `input` or `output`.
    inverse: whether the matrix is inverted.
    targets, ignore: modules.
    """

    name: str
    kind: str
    size: int
    randomized: bool
    location: str
    inverse: bool
    targets: tuple[str, ...]
    ignore: tuple[str, ...]

    @property
    def prefix(self) -> str:
        """Return what its tensors begin with, after the module's name."""
        return f"{self.name}_{self.location}"

    @property
    def _needed(self) -> list[str]:
        """Return the suffixes of tensors without which it is not known."""
        order = [f"{self.prefix}.perm"] if self.randomized else []
        return order if self.kind == FAST else [f"{self.prefix}.weight", *order]

    def means(self, part: StoredPart, classes: Sequence[str]) -> bool:
        """Whether it is of a module. classes: classes of such modules."""
        wanted = not set(self.targets).isdisjoint(classes) or any_means(part.own_name, self.targets)
        return wanted and set(self.ignore).isdisjoint(classes) and not any_means(part.own_name, self.ignore)

    def block(self, part: StoredPart) -> int:
        """Return the numbers of a block of a module."""
        return self.size or part.shape[1 if self.location == "input" else 0]

    def is_signed(self, part: StoredPart) -> bool:
        """Whether the stored matrix is held as signs alone."""
        side = self.block(part)
        return self.kind == STORED[0] and side >= SIGNED and not side & (side - 1)

    def nbytes(self, part: StoredPart) -> int:
        """Return the bytes of the step in memory."""
        side = self.block(part)
        if self.kind == FAST:
            return 8 * side * self.randomized
        return side if self.is_signed(part) else 4 * side * side

    def wanted(self, part: StoredPart) -> list[Wanted]:
        """Return the tensors that are read, of the module itself or of the one that it shares them with."""
        side = self.block(part)
        found = []
        if self.kind != FAST or f"{self.prefix}.weight" in part.tensors:
            found.append(Wanted(self.source(part, "weight", (side, side)), (*FLOATS, "F64"), [(side, side)]))
        if self.randomized:
            found.append(Wanted(self.source(part, "perm", (side,)), ("I64",), [(side,)]))
        return found

    def source(self, part: StoredPart, what: str, shape: tuple[int, ...]) -> str:
        """Return the suffix of a tensor of the module, or the name of the only other one of this shape."""
        own = f"{self.prefix}.{what}"
        if own in part.tensors:
            return own
        others = [info.name for info in part.elsewhere.get(own, ()) if tuple(info.shape) == shape]
        return others[0] if len(others) == 1 else own

    def unserved(self, part: StoredPart) -> str | None:
        """Return why a module cannot have it, None if it can."""
        side = self.block(part)
        count = part.shape[1 if self.location == "input" else 0]
        subject = f"its transform '{self.name}' of {self.location}s"
        if count % side:
            return f"{subject} has blocks of {side}, which do not divide {count}"
        if self.kind == FAST and side & (side - 1):
            return f"{subject} has blocks of {side}; Hadamard's matrices here have a power of two"
        if self.kind != FAST and side > LARGEST and not self.is_signed(part):
            return f"{subject} is a stored matrix of side {side}; at most {LARGEST} are served"
        missing = [
            one.suffix for one in self.wanted(part) if one.suffix in self._needed and one.suffix not in part.tensors
        ]
        if missing:
            return (
                f"{subject} has no tensor '{missing[0]}' beside '{part.own_name}', and no other module has the only one of "
                "its size; the checkpoint is incomplete, download it again"
            )
        return None

    def step(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> InputStep:
        """Return the step. Raises ValueError for tensors that are not what they are named."""
        import torch

        from core_runtime.weights.input_rotation import HadamardRotation, MatrixRotation, walsh

        side = self.block(part)
        name = self.source(part, "weight", (side, side))
        stored = tensors.get(name)
        if self.kind == FAST:
            if stored is not None and not torch.equal(stored.float(), walsh(torch.eye(side))):
                raise ValueError(f"has a tensor '{name}' that is not Hadamard's matrix; the file is damaged")
            order = b""
            if self.randomized:
                order = _order(tensors[self.source(part, "perm", (side,))], self.prefix)
            return HadamardRotation(side, side**0.5, order)
        assert stored is not None, "it is one of the tensors that are wanted"
        matrix = stored.float()
        if not bool(matrix.isfinite().all()):
            raise ValueError(f"has a tensor '{name}' that is not finite; the file is damaged")
        is_hadamard = self.kind == STORED[0]
        if self.is_signed(part):
            signs = matrix[:, 0]
            signed = walsh(torch.eye(side)) * signs.unsqueeze(1)
            if not torch.equal(matrix, signed) or not bool((signs.abs() == 1).all()):
                raise ValueError(f"has a tensor '{name}' that is not Hadamard's matrix with signs; the file is damaged")
            return HadamardRotation(side, side**0.5, b"", signs.to(torch.int8).numpy().tobytes(), self.inverse)
        if self.inverse and is_hadamard:  # of other matrices the inverse itself is stored
            matrix = matrix.T
        return MatrixRotation(side, side**0.5 if is_hadamard else 1.0, matrix.contiguous().numpy().tobytes())


def read_transforms(found: object, cache_scales: bool = False) -> tuple[Transform, ...]:
    """Return the transforms that run beside the weights. Raises Refusal for what is not served.

    cache_scales: whether the checkpoint has scales of cached keys, which are those of rotated ones where keys are rotated.
    """
    if not found:
        return ()
    outer = mapping_at("transform_config", found)
    known_keys("transform_config", outer, ("config_groups",), {})
    transforms: list[Transform] = []
    for name, scheme in mapping_at("transform_config.config_groups", outer.get("config_groups") or {}).items():
        where = f"transform_config.config_groups.{name}"
        transforms += _of_scheme(name, where, mapping_at(where, scheme))
        if cache_scales and any(step.get("location") == PAIR[1] for step in scheme.get("apply") or ()):
            again = "--hf-overrides.quantization_config.kv_cache_scheme null"
            hint = f"its scales are those of rotated keys; leave them out: {again}"
            raise Refusal(f"{where}.apply.location", "no k_cache beside a kv_cache_scheme", PAIR[1], hint)
    return tuple(transforms)


def _of_scheme(name: str, where: str, scheme: Mapping[str, Any]) -> list[Transform]:
    """Return the transforms of one scheme that run beside the weights."""
    known_keys(where, scheme, USED, NEUTRAL)
    steps = [mapping_at(f"{where}.apply", step) for step in scheme.get("apply") or ()]
    kind = scheme.get("type")
    places = [step.get("location") for step in steps]
    _check_places(f"{where}.apply.location", places, kind)
    if set(places).isdisjoint(ONLINE):
        return []
    if kind not in (FAST, *STORED):
        raise Refusal(f"{where}.type", " or ".join((FAST, *STORED)), kind, AGAIN)
    precision = str(scheme.get("precision") or PRECISIONS[0]).removeprefix("torch.")
    if precision not in PRECISIONS:
        raise Refusal(f"{where}.precision", " or ".join(PRECISIONS), precision, AGAIN)
    size = scheme.get("head_dim")
    side = 0 if size is None else whole_at(f"{where}.head_dim", size)
    if size is not None and side < 1:
        raise Refusal(f"{where}.head_dim", "a positive number", size)
    for step in steps:
        known_keys(f"{where}.apply", step, STEP_USED, {})
    return [
        Transform(
            name=name,
            kind=str(kind),
            size=side,
            randomized=scheme.get("randomize") is True and kind == FAST,
            location=step["location"],
            inverse=step.get("inverse") is True,
            targets=_names(f"{where}.apply.targets", step.get("targets")),
            ignore=_names(f"{where}.apply.ignore", step.get("ignore")),
        )
        for step in steps
        if step["location"] in ONLINE
    ]


def _check_places(where: str, places: Sequence[Any], kind: object) -> None:
    """Raise Refusal for a place that is unknown, or for one of a pair whose other place a matrix of this kind lacks."""
    for place in places:
        if place not in (*OFFLINE, *ONLINE, *PAIR):
            raise Refusal(where, " or ".join((*OFFLINE, *ONLINE, *PAIR)), place, AGAIN)
    if any(place in PAIR for place in places) and (kind == STORED[1] or not set(PAIR) <= set(places)):
        wanted = "an orthonormal matrix for both q_attn and k_cache, whose products it leaves as they are"
        raise Refusal(where, wanted, f"{kind} at {', '.join(map(str, places))}", AGAIN)


def _names(where: str, found: object) -> tuple[str, ...]:
    return (found,) if isinstance(found, str) else names_at(where, found)


def _order(order: Tensor, name: str) -> bytes:
    """Return an order of numbers as bytes. Raises ValueError unless it names each once."""
    import torch

    if not torch.equal(order.sort().values, torch.arange(len(order))):
        raise ValueError(f"has a tensor '{name}.perm' that does not name each number once; the file is damaged")
    return bytes(order.contiguous().numpy().tobytes())
