"""The declaration of a compressed-tensors checkpoint about its matrices.

Owns: its keys: those that are read, those without effect on weights, and those that are not served. Never does: look at
a tensor. Torch-free. Called by: the manifest, the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from core_quantization.compressed.transforms import Transform, read_transforms
from core_quantization.declared.refusal import Refusal, known_keys, mapping_at, names_at, pair_at, whole_at
from core_quantization.declared.shares import Shares

USED: Final = ("config_groups", "format", "sparsity_config", "transform_config", "quant_method")
NEUTRAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ignore": "the tensors of a module say whether it is packed",
        "global_compression_ratio": "a figure for people",
        "kv_cache_scheme": "the type of the cache is an argument; scales in the checkpoint are used with 8-bit caches",
        "quantization_status": "a module that is not compressed is told by its tensors",
        "version": "of the tool",
        "run_compressed": "an option of transformers",
    }
)
GROUP_USED: Final = ("targets", "weights", "format", "input_activations")
GROUP_NEUTRAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "output_activations": "outputs are not rounded",
    }
)
WEIGHTS_USED: Final = ("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure")
WEIGHTS_NEUTRAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "actorder": "a module with permuted inputs has a tensor that says so",
        "dynamic": "weights are never rounded at run time",
        "observer": "of the calibration",
        "observer_kwargs": "of the calibration",
        "scale_dtype": "the tensor has its type",
        "zp_dtype": "the tensor has its type",
    }
)
SPARSE_USED: Final = ("format",)
SPARSE_NEUTRAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "global_sparsity": "a figure for people",
        "ignore": "the tensors of a module say whether it is sparse",
        "registry_requires_subclass": "of the tool's own code",
        "sparsity_structure": "the bit mask says which numbers are there",
        "targets": "the tensors of a module say whether it is sparse",
    }
)
FORMATS: Final = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
    "marlin-24",
    "dense",
)
"""Formats that are distinguished by the tensors of a module."""
SPARSE_FORMATS: Final = ("dense", "sparse-24-bitmask", "sparse-bitmask")
STRATEGIES: Final = ("tensor", "channel", "group", "block", "tensor_group")
LARGEST_BITS: Final = 8


@dataclass(frozen=True, slots=True)
class Numbers:
    """The rounding of a matrix's numbers.

    kind: kind of numbers.
    bits: bits of one number.
    symmetric: whether there are no zero points.
    shares: what shares a scale.
    """

    kind: Literal["int", "float"]
    bits: int
    symmetric: bool
    shares: Shares


@dataclass(frozen=True, slots=True)
class Group:
    """Modules of one scheme.

    targets: their names, patterns and classes.
    numbers: rounding of their weights; None: weights stay plain.
    inputs: what the declaration says about inputs, read where the argument `activation` is `declared`.
    where: place of the group in the declaration.
    form: format of the group.
    """

    targets: tuple[str, ...]
    numbers: Numbers | None
    inputs: Any = None
    where: str = ""
    form: str | None = None


class Declared(NamedTuple):
    """A whole declaration. groups: modules by their schemes. transforms: those that run beside the weights."""

    groups: list[Group]
    transforms: tuple[Transform, ...]


def read_declared(declaration: Mapping[str, Any]) -> Declared:
    """Return the checked declaration. Raises Refusal for what is not served."""
    inner = declaration.get("quantization_config")
    if isinstance(inner, Mapping):  # as transformers writes it next to a `sparsity_config`
        rest = {key: value for key, value in declaration.items() if key != "quantization_config"}
        declaration = {**inner, **rest}
    known_keys("", declaration, USED, NEUTRAL)
    _check_format("format", declaration.get("format"))
    _check_sparsity(declaration.get("sparsity_config"))
    transforms = read_transforms(declaration.get("transform_config"), bool(declaration.get("kv_cache_scheme")))
    groups = mapping_at("config_groups", declaration.get("config_groups") or {})
    form = declaration.get("format")
    return Declared([_group(f"config_groups.{name}", group, form) for name, group in groups.items()], transforms)


def _group(where: str, found: object, form: str | None) -> Group:
    """Return one group. form: format of the whole declaration."""
    group = mapping_at(where, found)
    known_keys(where, group, GROUP_USED, GROUP_NEUTRAL)
    _check_format(f"{where}.format", group.get("format"))
    weights = group.get("weights")
    numbers = None if weights is None else _numbers(f"{where}.weights", weights)
    own = group.get("format") or form
    return Group(
        names_at(f"{where}.targets", group.get("targets")), numbers, group.get("input_activations"), where, own
    )


def _numbers(where: str, found: object) -> Numbers:
    weights = mapping_at(where, found)
    known_keys(where, weights, WEIGHTS_USED, WEIGHTS_NEUTRAL)
    kind = str(weights.get("type") or "int").lower()
    bits = whole_at(f"{where}.num_bits", weights.get("num_bits", LARGEST_BITS))
    symmetric = weights.get("symmetric", True) is not False
    if kind == "int":
        if not 1 <= bits <= LARGEST_BITS:
            raise Refusal(f"{where}.num_bits", "1 to 8 bits", bits, "quantize the model again with 4 or 8 bits")
        shares = _shares(where, weights)
        if shares.by == "block":
            raise Refusal(f"{where}.strategy", "tensor, channel or group for integers", "block", "quantize it again")
        return Numbers("int", bits, symmetric, shares)
    if kind != "float":
        raise Refusal(f"{where}.type", "int or float", kind)
    if bits not in (4, LARGEST_BITS):
        raise Refusal(f"{where}.num_bits", "4 or 8 bits for floats", bits, "quantize the model again with 4 or 8 bits")
    if not symmetric:
        raise Refusal(f"{where}.symmetric", "true for floats", "false", "quantize the model again without zero points")
    shares = _shares(where, weights)
    if bits == 4 and shares.by != "group":
        raise Refusal(f"{where}.strategy", "group or tensor_group for 4-bit floats", shares.by, "quantize it again")
    return Numbers("float", bits, symmetric, shares)


def _shares(where: str, weights: Mapping[str, Any]) -> Shares:
    """Return what shares a scale, by the strategy, or by the group size where there is no strategy."""
    size = weights.get("group_size")
    given = -1 if size is None else whole_at(f"{where}.group_size", size)
    usual = "group" if given > 0 else "channel" if size is not None else "tensor"
    strategy = str(weights.get("strategy") or usual).lower()
    if strategy not in STRATEGIES:
        raise Refusal(
            f"{where}.strategy", " or ".join(STRATEGIES), strategy, "quantize the model again with one of these"
        )
    if strategy == "tensor":
        return Shares("matrix")
    if strategy == "channel":
        return Shares("row")
    if strategy != "block":
        if given < 1:
            raise Refusal(f"{where}.group_size", "a positive number for groups", size)
        return Shares("group", given)
    structure = weights.get("block_structure")
    if isinstance(structure, str):
        structure = [int(side) if side.isdigit() else side for side in structure.split("x")]
    return Shares("block", block=pair_at(f"{where}.block_structure", structure))


def _check_format(where: str, found: object) -> None:
    if found is not None and found not in FORMATS:
        raise Refusal(where, " or ".join(FORMATS), repr(found), "save the model in one of these formats")


def _check_sparsity(found: object) -> None:
    if found is None or found == {}:
        return
    sparsity = mapping_at("sparsity_config", found)
    known_keys("sparsity_config", sparsity, SPARSE_USED, SPARSE_NEUTRAL)
    form = sparsity.get("format", "dense")
    if form not in SPARSE_FORMATS:
        raise Refusal("sparsity_config.format", " or ".join(SPARSE_FORMATS), repr(form), "save the model as dense")
