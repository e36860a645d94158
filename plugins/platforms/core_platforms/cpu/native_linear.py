"""Packed linear layers: the formats that native kernels accept, and how a canonical weight is passed to them.

Owns: the repacking of weights and the checks of a product's operands. Never does: arithmetic (that is in `native/`).
Called by: `NativeKernels.linear`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import ModuleType

import torch
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_platforms.cpu.activation_numbers import ACTIVATION_KINDS, activation_numbers, alone_numbers
from core_platforms.cpu.checks import check_rows, check_same
from core_platforms.cpu.input_rounding import common_rounding, rounding_numbers
from core_runtime.contracts import ActivatedLinear
from core_runtime.weights.canonical import INPUT_GROUP
from core_runtime.weights.formats import (
    FP8,
    CanonicalWeight,
    Codebook,
    Dense,
    Int8Channel,
    IntGroups,
    StoredRows,
    SuperGroups,
)
from core_runtime.weights.input_rounding import InputRounding
from core_runtime.weights.tables import TABLES, Table

FORMATS = {
    "float32": 0,
    "float16": 1,
    "bfloat16": 2,
    "int4_groups": 3,
    "int8_groups": 4,
    "int8_channel": 4,
    "nf4": 5,
    "fp4": 5,
    "mxfp4": 5,
    "nvfp4": 5,
    "fp8_e4m3": 6,
    "fp8_e5m2": 7,
    "int2_super": 8,
    "int3_super": 9,
    "int4_super": 10,
    "int5_super": 11,
    "int6_super": 12,
    "iq4_super": 13,
    "iq3_s_super": 13,
    "iq3_super": 13,
    "iq2_super": 14,
    "iq1_super": 14,
}
SUPER_FORMATS = tuple(name for name in FORMATS if name.endswith("_super"))
ACTIVATIONS: dict[Activation, int] = {"none": 0, "bf16": 1, "int8": 2, "int8_row": 2}
ALLOWED: dict[str, tuple[Activation, ...]] = {
    **dict.fromkeys(("float32", "float16", "bfloat16", "nf4", "fp4", "fp8_e4m3", "fp8_e5m2"), ("none", "bf16")),
    **dict.fromkeys(("int4_groups", "int8_groups", *SUPER_FORMATS), ("none", "int8")),
    **dict.fromkeys(("mxfp4", "nvfp4"), ("none", "bf16", "int8")),
    "int8_channel": ("none", "int8", "int8_row"),
}
ROW_LAYOUTS = {
    name: number
    for number, name in enumerate(
        (
            *("float32", "float16", "bfloat16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K"),
            *("Q6_K", "TQ2_0", "IQ4_NL", "IQ4_XS", "MXFP4"),
        )
    )
}
"""Layouts of rows that the extension packs as they lie in files: RowLayout in `native/native.h`."""
SCALE_TYPES = {torch.float32: 0, torch.float16: 1, torch.uint8: 2, torch.float8_e4m3fn: 3, torch.bfloat16: 4}
DOUBLED_ZERO = 12  # twice the smallest code of e2m1, negated: doubled codes above it are unsigned integers
TABLE_ZERO = 128  # signed bytes of a table become unsigned ones
GROUP_MULTIPLE = 16
NUM_TABLES = 10
CODES = 16  # entries in a codebook table
ORDER = 4
"""Index of the input-order table among the source's tables."""
PAGE = 4096
BYTES_A_WORD = 4  # 8-bit elements are packed in fours along K
FEATURES = frozenset({*ACTIVATION_KINDS, "partial_rotary", "norms_by_head", "sparse_mixer", "routing_epsilon"})
GATED_MULTIPLE = 64  # outputs of gated layers: whole panels of 32 in each half
MAX_INT8_INPUTS = 131072  # products of at most 127 * 128 then sum within 32 bits


@dataclass(slots=True)
class PackSource:
    """Arguments of `_native.linear_pack`. Tensors must outlive the call.

    format: a number of FORMATS.
    shape: (N, K).
    group: inputs that share a scale, 0 without scales.
    super_size: inputs that share the upper one of two scales, 0 where there are no two.
    zero: is subtracted from each stored integer.
    scale_type: a number of SCALE_TYPES.
    input_group: inputs that share a scale where they are rounded to integers, counted from the start of each group; 0:
        the whole group.
    tables: values, scale, minimum, zeros, order, codes, row_scale, and of super-groups high, sub_scale, sub_minimum;
        None is an absent one, and the last ones may be left out.
    layout, places: how and where each row lies in a file; the tables then only say which of them there are.
    """

    format: int
    shape: tuple[int, int]
    group: int = 0
    super_size: int = 0
    zero: int = 0
    scale_type: int = 0
    input_group: int = 0
    tables: list[Tensor | None] = field(default_factory=list)
    layout: int = 0
    places: Tensor | None = None

    @property
    def order(self) -> bytes | None:
        """Return the order of inputs as a comparable value."""
        table = self.tables[ORDER] if len(self.tables) > ORDER else None
        return None if table is None else table.numpy().tobytes()

    def arguments(self, activation: Activation, bias: Tensor | None, into: Tensor | None, segments: int) -> list[int]:
        """Return the argument list in the extension's order."""
        n, k = self.shape
        groups = [self.group, self.super_size]
        numbers = [self.format, ACTIVATIONS[activation], n, k, *groups, self.zero, self.scale_type, segments]
        numbers.append(self.input_group)
        absent = [None] * (NUM_TABLES - len(self.tables))
        tables = [*self.tables, *absent, bias, into]
        addresses = [0 if table is None else table.data_ptr() for table in tables]
        rows = 0 if self.places is None else self.places.data_ptr()
        return [*numbers, *addresses, self.layout, rows]


class NativeLinear:
    """A linear kernel with its repacked weight.

    shape: (N, K).
    nbytes: of its packed memory.
    packed: its handle in the extension.
    memory: the caller's memory that holds the packed weight, or None.
    rounding: of inputs, before the product; None: they are kept.
    gated: the product followed by a gated activation, None where N does not allow it.
    """

    capturable = True
    features = frozenset(ACTIVATION_KINDS)
    __slots__ = ("_form", "_gather", "_native", "_run", "gated", "memory", "nbytes", "packed", "rounding", "shape")

    def __init__(
        self,
        native: ModuleType,
        weight: CanonicalWeight,
        activation: Activation,
        bias: Tensor | None,
        into: Tensor | None = None,
        segments: int = 1,
    ) -> None:
        problem = weight.problem()
        if problem is not None:
            raise ValueError(problem)
        source = pack_source(weight, activation)
        if into is not None:
            _check_memory(into, prepared_nbytes(native, weight, activation))
        try:
            self._hold(native, source, activation, bias, into, segments)
        except ValueError:
            if isinstance(weight, StoredRows):
                weight.canonical()  # raises the error that names the tensor
            raise

    @classmethod
    def held(
        cls,
        native: ModuleType,
        source: PackSource,
        activation: Activation,
        bias: Tensor | None,
        into: Tensor,
        segments: int,
    ) -> NativeLinear:
        """Wrap a weight that is already packed in `into`. source: without values. Raises ValueError."""
        sizes = replace(source, tables=[table if table is into else None for table in source.tables])
        without_tables = native.linear_pack(*sizes.arguments(activation, None, into, segments))
        _check_memory(into, native.linear_bytes(without_tables))
        kernel = cls.__new__(cls)
        kernel._hold(native, source, activation, bias, into, segments)
        return kernel

    def _hold(
        self,
        native: ModuleType,
        source: PackSource,
        activation: Activation,
        bias: Tensor | None,
        into: Tensor | None,
        segments: int,
    ) -> None:
        """Pack the source, or adopt the packed memory when the source has no values."""
        self.shape = source.shape
        n = self.shape[0]
        if bias is not None:
            bias = bias.detach().float().contiguous()
            if bias.shape != (n,):
                raise ValueError(f"bias has shape {tuple(bias.shape)}, expected ({n},)")
        self.memory = into  # the memory must live as long as the weight packed into it
        arguments = source.arguments(activation, bias, into, segments)
        self.packed = native.linear_pack(*arguments)
        groups = (source.group, source.super_size, source.zero, source.scale_type)
        self._form = (self.shape, source.format, activation, *groups, source.order)
        self.rounding: InputRounding | None = None
        self.nbytes: int = native.linear_bytes(self.packed)
        self._native = native
        self._run = native.linear
        self._gather = native.linear_rows
        self.gated: ActivatedLinear | None = self._gated if n % GATED_MULTIPLE == 0 else None

    @property
    def form(self) -> tuple[object, ...]:
        """Return the fields that decide how inputs are staged."""
        return (*self._form, common_rounding(self.rounding))

    def round_inputs(self, step: InputRounding) -> bool:
        """Round inputs by `step` in every later product: the `HasInputRounding` contract."""
        if step.rule != "fixed" and step.group_size and self.shape[1] % step.group_size:
            return False
        self._native.linear_round(self.packed, *rounding_numbers(step))
        self.rounding = step
        return True

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`; a row's bits depend on that row alone."""
        n, k = self.shape
        rows, stride = check_rows(x, k, "x")
        out_rows, out_stride = check_rows(out, n, "out")
        check_same(rows, out_rows, "out")
        self._run(self.packed, x.data_ptr(), stride, rows, out.data_ptr(), out_stride, accumulate)

    def _gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Compute out[T, N / 2] = act(first half) * second half of x @ W.T (+ bias), bit-identical to the product
        followed by `gated`.
        """
        n, k = self.shape
        rows, stride = check_rows(x, k, "x")
        out_rows, out_stride = check_rows(out, n // 2, "out")
        check_same(rows, out_rows, "out")
        self._native.linear_gated(
            self.packed, x.data_ptr(), stride, rows, out.data_ptr(), out_stride, *activation_numbers(activation)
        )

    def activated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Compute out[T, N] = act(x @ W.T (+ bias)), bit-identical to the product followed by `activate`."""
        n, k = self.shape
        rows, stride = check_rows(x, k, "x")
        out_rows, out_stride = check_rows(out, n, "out")
        check_same(rows, out_rows, "out")
        self._native.linear_activated(
            self.packed, x.data_ptr(), stride, rows, out.data_ptr(), out_stride, *alone_numbers(activation)
        )

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """Gather out[T, K] = W[ids] as float32, ids int64 [T]. Raises IndexError for a row that does not exist."""
        rows, stride = check_rows(out, self.shape[1], "out")
        if ids.dtype is not torch.int64 or ids.shape != (rows,):
            raise ValueError(f"ids is {ids.dtype} {tuple(ids.shape)}, expected int64 ({rows},)")
        self._gather(self.packed, ids.contiguous().data_ptr(), rows, out.data_ptr(), stride, 0, 0)

    def rows_of_part(self, ids: Tensor, first: int, whole: int, out: Tensor) -> None:
        """Gather out[T, K] = W[ids - first], and zeros for other ids below `whole`. Raises IndexError for ids beyond."""
        rows, stride = check_rows(out, self.shape[1], "out")
        if ids.dtype is not torch.int64 or ids.shape != (rows,):
            raise ValueError(f"ids is {ids.dtype} {tuple(ids.shape)}, expected int64 ({rows},)")
        self._gather(self.packed, ids.contiguous().data_ptr(), rows, out.data_ptr(), stride, first, whole)


def prepared_nbytes(native: ModuleType, weight: CanonicalWeight, activation: Activation) -> int:
    """Return the size of the packed weight in bytes, without its bias, row factors and input order.

    Raises ValueError for an unknown format.
    """
    form = packed_form(weight, activation)
    held = (weight.like if isinstance(weight, StoredRows) else weight).tensors()
    minimum = "minimum" in held or "minimum_scale" in held
    sizes = (form.format, *form.shape, form.group, form.super_size, form.scale_type)
    parts = (minimum, "zeros" in held, "sub_scale" in held, "sub_minimum" in held)
    return int(native.linear_prepared_bytes(*sizes, *parts))


def packed_form(weight: CanonicalWeight, activation: Activation) -> PackSource:
    """Describe a weight's format to the extension, without its tables. Raises ValueError for an unknown format."""
    if isinstance(weight, StoredRows):
        return replace(packed_form(weight.like, activation), shape=weight.shape)
    if isinstance(weight, Dense):
        name = str(weight.weight.dtype).removeprefix("torch.")
        if activation == "bf16":
            name = "bfloat16"
        return PackSource(FORMATS[name], weight.shape)
    if not isinstance(weight, IntGroups | Int8Channel | FP8 | Codebook | SuperGroups):
        raise ValueError(f"a weight of format '{weight.name}' has no native kernel; known are {', '.join(FORMATS)}")
    scale_type = SCALE_TYPES[weight.scale.dtype]
    form = PackSource(FORMATS[weight.name], weight.shape, weight.group_size, scale_type=scale_type)
    if isinstance(weight, IntGroups):
        form.zero = weight.zero
    elif isinstance(weight, SuperGroups):
        form.super_size = weight.super_size
        form.zero = TABLE_ZERO if weight.table else weight.zero
    elif isinstance(weight, Codebook):
        form.zero = DOUBLED_ZERO if activation == "int8" else 0
    else:
        words = -(-weight.group_size // BYTES_A_WORD)
        form.group = words * BYTES_A_WORD
        form.zero = 128 if isinstance(weight, Int8Channel) else 0
    if activation == "int8" and not isinstance(weight, Codebook):
        form.input_group = min(form.group, INPUT_GROUP)
    return form


def pack_source(weight: CanonicalWeight, activation: Activation) -> PackSource:
    """Describe a weight with its tables to the extension. Raises ValueError for an unknown format."""
    if isinstance(weight, StoredRows):
        source = pack_source(weight.like, activation)
        return replace(source, shape=weight.shape, layout=ROW_LAYOUTS[weight.layout], places=weight.places)
    source = packed_form(weight, activation)
    if isinstance(weight, Dense):
        dense = weight.weight.bfloat16() if activation == "bf16" else weight.weight
        source.tables = [dense.contiguous()]
    elif isinstance(weight, IntGroups):
        minimum = None if weight.minimum is None else weight.minimum.contiguous()
        zeros = None if weight.zeros is None else weight.zeros.contiguous()
        order = None if weight.order is None else weight.order.tensor()
        source.tables = [weight.values.contiguous(), weight.scale.contiguous(), minimum, zeros, order]
    elif isinstance(weight, SuperGroups):
        source.tables = _super_tables(weight)
    elif isinstance(weight, Codebook):
        row_scale = None if weight.row_scale is None else weight.row_scale.contiguous()
        codes = torch.tensor(weight.codes, dtype=torch.float32)
        source.tables = [weight.values.contiguous(), weight.scale.contiguous(), None, None, None, codes, row_scale]
    elif isinstance(weight, Int8Channel | FP8):
        values = weight.values.contiguous().view(torch.uint8)
        if source.zero:
            values = values ^ 128  # signed bytes become unsigned by adding 128
        source.tables = [values, weight.scale.contiguous()]
    return source


def _super_tables(weight: SuperGroups) -> list[Tensor | None]:
    table = _whole_table(TABLES[weight.table]) if weight.table else None
    order = None if weight.order is None else weight.order.tensor()
    first = [weight.low, weight.scale, weight.minimum_scale, weight.zeros, order, table, None]
    second = [weight.high, weight.sub_scale, weight.sub_minimum]
    return [tensor if tensor is None else tensor.contiguous() for tensor in (*first, *second)]


def _whole_table(table: Table) -> Tensor:
    """Pad a table to the length that the extension reads; no code refers to the padding."""
    whole = torch.zeros(CODES)
    whole[: len(table.numbers)] = torch.tensor(table.numbers)
    return whole


def _check_memory(into: Tensor, nbytes: int) -> None:
    """Raise ValueError unless a packed weight of `nbytes` fits into `into`."""
    plain = into.dtype is torch.uint8 and into.dim() == 1
    if not plain or len(into) < nbytes or into.data_ptr() % PAGE:
        raise ValueError(
            f"into is {into.dtype} {tuple(into.shape)} at {into.data_ptr():#x}, expected uint8 [{nbytes}] that begins at a "
            f"multiple of {PAGE}"
        )


def linear_reasons(query: KernelQuery) -> list[Reason]:
    """Return the reasons why a linear layer is not supported; empty means supported."""
    if query.format not in FORMATS:
        return [Reason("format", ", ".join(FORMATS), query.format)]
    reasons = []
    allowed = ALLOWED[query.format]
    if query.activation not in allowed:
        reasons.append(Reason("activation", " or ".join(allowed), query.activation))
    group = query.attributes.get("group_size", GROUP_MULTIPLE)
    inputs = query.shape[-1] if query.shape else 0
    is_codebook = FORMATS[query.format] == FORMATS["nf4"]
    by_sixteen = is_codebook or query.format in ("int4_groups", "int8_groups", *SUPER_FORMATS)
    multiple = GROUP_MULTIPLE if by_sixteen else BYTES_A_WORD
    one_group = not by_sixteen and group >= inputs  # a single group may end early, because the weight ends with it
    if group % multiple and not one_group:
        reasons.append(Reason("group_size", f"a multiple of {multiple}", str(group)))
    if is_codebook and query.activation == "int8" and group > INPUT_GROUP:
        reasons.append(Reason("group_size", f"at most {INPUT_GROUP}", str(group)))
    if query.activation == "int8_row" and inputs > MAX_INT8_INPUTS:
        reasons.append(Reason("inputs", f"at most {MAX_INT8_INPUTS}", str(inputs)))
    return reasons
