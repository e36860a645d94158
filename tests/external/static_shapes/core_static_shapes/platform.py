"""The device: each operation is compiled once for each bucket of rows, and runs on static buffers."""

import json
from pathlib import Path

import torch

from core.api.errors import UserError
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.reference import ReferenceKernels


class Compiler:
    """Programs by (operation, width, bucket); compiling is the dear part on such devices."""

    def __init__(self, buckets):
        self.buckets, self.programs = buckets, {}

    def padded(self, what, x):
        """x [T, K] in the static input of its program; the rows beyond T hold zeros."""
        bucket = next((size for size in self.buckets if size >= len(x)), None)
        if bucket is None:
            raise UserError(f"{len(x)} rows are more than the largest program, {self.buckets[-1]}; add a bucket.")
        buffer = self.programs.setdefault((what, x.shape[1], bucket), torch.zeros(bucket, x.shape[1]))
        buffer[: len(x)] = x
        buffer[len(x) :] = 0
        return buffer


class StaticLinear:
    """A matrix whose product always has a bucket's number of rows."""

    def __init__(self, inner, compiler, number):
        self.inner, self.compiler, self.number = inner, compiler, number
        self.shape, self.nbytes = inner.shape, inner.nbytes

    def __call__(self, x, out, *, accumulate=False):
        """The padded product, of which the first rows are kept."""
        buffer = self.compiler.padded(f"linear {self.number}", x)
        product = torch.empty(len(buffer), self.shape[0])
        self.inner(buffer, product)
        if accumulate:
            out += product[: len(x)]
        else:
            out.copy_(product[: len(x)])

    def rows(self, ids, out):
        """A gather has no program."""
        self.inner.rows(ids, out)


class StaticKernels(ReferenceKernels):
    """Products and norms in buckets; the rest is inherited."""

    name = "static_shapes"

    def __init__(self, compiler):
        self.compiler, self.count = compiler, 0

    def linear(self, weight, *, activation, bias=None):
        """Each matrix is a program of its own."""
        self.count += 1
        return StaticLinear(super().linear(weight, activation=activation, bias=bias), self.compiler, self.count)

    def rms_norm(self, x, weight, eps, out):
        """On the static buffer."""
        buffer = self.compiler.padded("rms_norm", x)
        super().rms_norm(buffer, weight, eps, buffer)
        out.copy_(buffer[: len(x)])


class StaticRuntime:
    """The opened device."""

    num_threads = 1

    def __init__(self, buckets, log):
        self.device = torch.device("cpu")
        self.compiler, self.log = Compiler(buckets), log
        self.kernels = KernelSet([StaticKernels(self.compiler)], "static_shapes")

    def activation_dtype(self, dtype):
        """Always float32."""
        return torch.float32

    def available_memory(self):
        """A gibibyte."""
        return 1 << 30

    def allocate(self, nbytes):
        """Zeroed bytes."""
        return torch.zeros(nbytes, dtype=torch.uint8)

    def close(self):
        """Tell what was compiled."""
        if self.log:
            Path(self.log).write_text(json.dumps([list(program) for program in self.compiler.programs]))


class StaticPlatform:
    """The platform contract."""

    num_threads = 1

    def __init__(self, buckets, log):
        self.buckets, self.log = buckets, log

    def open(self, device, kernels):
        """The only device."""
        if device not in ("static_shapes", "static_shapes:0"):
            raise UserError(f"device '{device}': there is only 'static_shapes:0'.")
        return StaticRuntime(self.buckets, self.log)
