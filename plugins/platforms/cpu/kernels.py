"""The native kernels of the `cpu` platform, as the `kernels` contract asks for them.

Owns: the checks of shapes and types, and the repacking of weights; the arithmetic is in `native/`.
Never does: fall back by itself (`core.layers.kernels` chooses another provider where `supports` gives reasons).
Called by: the kernel set of the platform's runtime, hence every layer. A call costs about a microsecond of Python.

Between operations everything is float32 with contiguous rows; a row's stride may exceed its width.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from core.api.errors import PluginError
from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core.weights.formats import CanonicalWeight, Dense
from plugins.platforms.cpu.extension import kernels_or_reason
from plugins.platforms.cpu.kernels_manifest import VERSION

OPERATIONS = ("linear", "rms_norm", "rms_norm_heads", "rotary", "gated", "add", "scale", "race", "logprobs")
FORMATS = {"float32": 0, "float16": 1, "bfloat16": 2, "int4_groups": 3, "int8_groups": 4}
ACTIVATIONS: dict[Activation, int] = {"none": 0, "bf16": 1, "int8": 2}
GATES = {"silu": 0, "gelu_tanh": 1}
DENSE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
GROUP_MULTIPLE = 16


def check_rows(tensor: Tensor, width: int, what: str) -> tuple[int, int]:
    """(rows, row stride) of a float32 matrix with contiguous rows of `width`. Raises ValueError."""
    rows, actual = tensor.shape
    stride, step = tensor.stride()
    if actual != width or (step != 1 and width > 1) or tensor.dtype is not torch.float32:
        raise ValueError(
            f"{what} is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}, "
            f"expected float32 [rows, {width}] with contiguous rows"
        )
    return rows, stride


def check_heads(tensor: Tensor, what: str) -> tuple[int, int, int, int, int]:
    """(rows, heads, width, row stride, head stride) of a float32 [T, H, D] with contiguous D. Raises ValueError."""
    rows, heads, width = tensor.shape
    row_stride, head_stride, step = tensor.stride()
    if step != 1 or tensor.dtype is not torch.float32:
        raise ValueError(
            f"{what} is {tensor.dtype} with strides {tensor.stride()}, expected float32 with contiguous heads"
        )
    return rows, heads, width, row_stride, head_stride


def check_table(tensor: Tensor, dtype: torch.dtype, what: str) -> int:
    """The address of a contiguous tensor of `dtype`. Raises ValueError."""
    if tensor.dtype is not dtype or not tensor.is_contiguous():
        raise ValueError(f"{what} is {tensor.dtype} with strides {tensor.stride()}, expected contiguous {dtype}")
    return int(tensor.data_ptr())


def check_tables(rows: int, what: str, *tables: tuple[Tensor, torch.dtype]) -> list[int]:
    """The addresses of contiguous one-dimensional tensors with `rows` elements. Raises ValueError."""
    for tensor, _ in tables:
        if tensor.shape != (rows,):
            raise ValueError(f"an argument of {what} has the shape {tuple(tensor.shape)}, expected {rows} rows")
    return [check_table(tensor, dtype, f"an argument of {what}") for tensor, dtype in tables]


def check_logits(logits: Tensor, which: Tensor) -> tuple[int, tuple[int, int, int]]:
    """Address, and stride, vocabulary and number of chosen rows. Raises IndexError, ValueError."""
    rows, width = logits.shape
    _, stride = check_rows(logits, width, "logits")
    count = len(which)
    if count and not (int(which.min()) >= 0 and int(which.max()) < rows):
        raise IndexError(f"which names rows {which.tolist()} of {rows}")
    return logits.data_ptr(), (stride, width, count)


def check_same(rows: int, other: int, what: str) -> None:
    """Raises ValueError when `what` has another number of rows."""
    if rows != other:
        raise ValueError(f"{what} has {other} rows, expected {rows}")


class NativeLinear:
    """A repacked weight of shape (N, K); nbytes counts its packed memory."""

    __slots__ = ("_gather", "_packed", "_run", "nbytes", "shape")

    def __init__(
        self, native: ModuleType, weight: CanonicalWeight, activation: Activation, bias: Tensor | None
    ) -> None:
        self.shape = weight.shape
        arguments, keep = _pack_arguments(weight, activation)
        bias = None if bias is None else bias.detach().float().contiguous()
        if bias is not None and bias.shape != (self.shape[0],):
            raise ValueError(f"bias has shape {tuple(bias.shape)}, expected ({self.shape[0]},)")
        self._packed = native.linear_pack(*arguments, 0 if bias is None else bias.data_ptr())
        del keep
        self.nbytes: int = native.linear_bytes(self._packed)
        self._run = native.linear
        self._gather = native.linear_rows

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`; a row's bits depend on that row alone."""
        n, k = self.shape
        rows, stride = check_rows(x, k, "x")
        out_rows, out_stride = check_rows(out, n, "out")
        check_same(rows, out_rows, "out")
        self._run(self._packed, x.data_ptr(), stride, rows, out.data_ptr(), out_stride, accumulate)

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """out[T, K] = W[ids] as float32, ids int64 [T]. Raises IndexError for a row that does not exist."""
        rows, stride = check_rows(out, self.shape[1], "out")
        if ids.dtype is not torch.int64 or ids.shape != (rows,):
            raise ValueError(f"ids is {ids.dtype} {tuple(ids.shape)}, expected int64 ({rows},)")
        self._gather(self._packed, ids.contiguous().data_ptr(), rows, out.data_ptr(), stride)


def _pack_arguments(weight: CanonicalWeight, activation: Activation) -> tuple[list[int], list[Tensor]]:
    """The integers that `_native.linear_pack` reads (all but the bias), and the tensors that must outlive the call."""
    n, k = weight.shape
    if isinstance(weight, Dense):
        dense = weight.weight.bfloat16() if activation == "bf16" else weight.weight
        dense = dense.contiguous()
        return [DENSE_TYPES[dense.dtype], ACTIVATIONS[activation], n, k, 0, 0, 0, dense.data_ptr(), 0, 0], [dense]
    keep = [weight.values.contiguous(), weight.scale.contiguous()]
    if weight.minimum is not None:
        keep.append(weight.minimum.contiguous())
    pointers = [tensor.data_ptr() for tensor in keep]
    half = int(weight.scale.dtype is torch.float16)
    head = [FORMATS[weight.name], ACTIVATIONS[activation], n, k, weight.group_size, weight.zero, half]
    return [*head, *pointers, *([0] * (3 - len(pointers)))], keep


class NativeKernels:
    """The operations of a forward pass, on the extension's own threads. Bit-identical for any batch and thread count."""

    name = "cpu_native"

    def __init__(self, num_threads: int) -> None:
        native = kernels_or_reason()
        if isinstance(native, Reason):
            raise PluginError(f"kernels cpu_native are not available: {native}")
        self._native = native
        self.num_threads: int = native.pool_init(num_threads)
        self.numerics = f"cpu-native-{VERSION}:{native.isa()}"

    def supports(self, query: KernelQuery) -> list[Reason]:
        """What is missing for the operation; empty means supported."""
        reasons = []
        if query.device != "cpu":
            reasons.append(Reason("device", "cpu", query.device))
        if query.op not in OPERATIONS:
            reasons.append(Reason("op", ", ".join(OPERATIONS), query.op))
        if query.op == "linear":
            reasons += _linear_reasons(query)
        return reasons

    def linear(self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None) -> NativeLinear:
        """Repack once; the caller then drops `weight`."""
        return NativeLinear(self._native, weight, activation, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """out[T, H] = x / sqrt(mean(x²) + eps) * weight; out may be x."""
        width = weight.shape[0]
        rows, stride = check_rows(x, width, "x")
        out_rows, out_stride = check_rows(out, width, "out")
        check_same(rows, out_rows, "out")
        gain = check_table(weight, torch.float32, "weight")
        self._native.rms_norm(x.data_ptr(), stride, 0, out.data_ptr(), out_stride, 0, gain, eps, rows, 1, width)

    def rms_norm_heads(self, x: Tensor, weight: Tensor, eps: float) -> None:
        """In place over the last axis of x [T, H, D]."""
        rows, heads, width, row, head = check_heads(x, "x")
        if weight.shape[0] != width:
            raise ValueError(f"weight has {weight.shape[0]} elements, expected the head size {width}")
        data, gain = x.data_ptr(), check_table(weight, torch.float32, "weight")
        self._native.rms_norm(data, row, head, data, row, head, gain, eps, rows, heads, width)

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """In place on q [T, Hq, D] and k [T, Hkv, D]: pairs (i, i + R/2) of the first R = 2 * cos.shape[1] of D."""
        half = cos.shape[1]
        tables = check_table(cos, torch.float32, "cos"), check_table(sin, torch.float32, "sin")
        tail = (half, *tables, check_table(positions, torch.int64, "positions"))
        for x in (q, k):
            rows, heads, width, row, head = check_heads(x, "q or k")
            check_same(positions.shape[0], rows, "q or k")
            if 2 * half > width:
                raise ValueError(f"cos has {half} columns, expected at most half of the head size {width}")
            self._native.rotary(x.data_ptr(), row, head, rows, heads, *tail)

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """out[T, I] = act(x[:, :I]) * x[:, I:], activation `silu` or `gelu_tanh`."""
        width = out.shape[1]
        rows, stride = check_rows(x, 2 * width, "x")
        out_rows, out_stride = check_rows(out, width, "out")
        check_same(rows, out_rows, "out")
        self._native.gated(x.data_ptr(), stride, out.data_ptr(), out_stride, rows, width, GATES[activation], 0.0)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """residual += x, both [T, H]."""
        width = residual.shape[1]
        rows, stride = check_rows(x, width, "x")
        out_rows, out_stride = check_rows(residual, width, "residual")
        check_same(rows, out_rows, "residual")
        self._native.add(x.data_ptr(), stride, residual.data_ptr(), out_stride, rows, width, 0, 0.0)

    def scale(self, x: Tensor, factor: float) -> None:
        """x[T, H] *= factor."""
        rows, stride = check_rows(x, x.shape[1], "x")
        self._native.scale(0, 0, x.data_ptr(), stride, rows, x.shape[1], 0, factor)

    def race(
        self,
        logits: Tensor,
        which: Tensor,
        keys: Tensor,
        temperatures: Tensor,
        out: Tensor,
        filters: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> None:
        """The `RaceKernel` contract: the same tokens as `core.sampling.race`, without noise for the whole vocabulary."""
        size, sizes = check_logits(logits, which)
        tables = check_tables(
            len(which), "race", (which, torch.int64), (temperatures, torch.float32), (out, torch.int64)
        )
        if keys.shape != (len(which), 5):
            raise ValueError(f"keys have the shape {tuple(keys.shape)}, expected {len(which)} rows of 5 words")
        words = check_table(keys, torch.int64, "keys")
        limits = [0, 0, 0]
        if filters is not None:
            top_k, top_p, least = filters
            limits = check_tables(
                len(which), "race", (top_k, torch.int64), (top_p, torch.float64), (least, torch.float32)
            )
        self._native.race(size, *sizes, tables[0], words, tables[1], *limits, tables[2])

    def logprobs(
        self, logits: Tensor, which: Tensor, chosen: Tensor, counts: Tensor, ids: Tensor, values: Tensor, ranks: Tensor
    ) -> None:
        """The `LogprobsKernel` contract."""
        data, sizes = check_logits(logits, which)
        rows, width = ids.shape
        most = min(width - 1, logits.shape[1])
        if rows and not (int(counts.min()) >= 0 and int(counts.max()) <= most):
            raise ValueError(f"counts {counts.tolist()}: expected 0 to {most}")
        if rows and not (int(chosen.min()) >= 0 and int(chosen.max()) < logits.shape[1]):
            raise IndexError(f"chosen tokens {chosen.tolist()} of {logits.shape[1]}")
        wide = torch.int64
        inputs = check_tables(rows, "logprobs", (which, wide), (chosen, wide), (counts, wide), (ranks, wide))
        if values.shape != ids.shape:
            raise ValueError(f"values have the shape {tuple(values.shape)}, expected {tuple(ids.shape)}")
        outputs = check_table(ids, wide, "ids"), check_table(values, torch.float64, "values")
        self._native.logprobs(data, *sizes, width, *inputs[:3], *outputs, inputs[3])


def _linear_reasons(query: KernelQuery) -> list[Reason]:
    if query.format not in FORMATS:
        return [Reason("format", ", ".join(FORMATS), query.format)]
    reasons = []
    quantized = query.format.startswith("int")
    allowed = ("none", "int8") if quantized else ("none", "bf16")
    if query.activation not in allowed:
        reasons.append(Reason("activation", " or ".join(allowed), query.activation))
    group = query.attributes.get("group_size", GROUP_MULTIPLE)
    if quantized and group % GROUP_MULTIPLE:
        reasons.append(Reason("group_size", f"a multiple of {GROUP_MULTIPLE}", str(group)))
    return reasons
