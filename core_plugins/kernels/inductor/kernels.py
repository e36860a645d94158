"""Operations of the reference, compiled by torch in the background.

Owns: which operations are compiled, and whether they may take the reference's place. Never does: wait for a compiler.
Called by: `KernelSet`.

A compiled operation is tried on numbers of every size and dtype that differ in shape. It is used from the beginning of a
later step on, and only if it gives the reference's bits each time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.layers.reference import ReferenceKernels
from core_plugins.kernels.inductor.manifest import OPERATIONS, lacking

logger = logging.getLogger(__name__)

Operation = Callable[..., None]
Compile = Callable[[Operation], Operation]

ROWS: Final = (1, 5, 64)
WIDTHS: Final = (64, 320)
DTYPES: Final = (torch.float32, torch.bfloat16)


def compiled(operation: Operation) -> Operation:
    """Compiled once for all numbers of rows."""
    made: Operation = torch.compile(operation, dynamic=True)
    return made


class CompiledKernels(ReferenceKernels):
    """The contract's implementation for a few operations. compile: makes the compiled form of one."""

    name = "inductor"

    def __init__(self, device: str, compile: Compile = compiled) -> None:
        self._device = torch.device(device)
        self._compile = compile
        self._reference = ReferenceKernels()
        self._used: dict[str, Operation] = {name: getattr(self._reference, name) for name in OPERATIONS}
        self._ready: dict[str, Operation] = {}

    def supports(self, query: KernelQuery) -> list[Reason]:
        """As the manifest says."""
        return lacking(query)

    def start(self) -> None:
        """Compile in a thread of its own, which ends with the process."""
        threading.Thread(target=self.prepare, name="inductor", daemon=True).start()

    def prepare(self) -> None:
        """Compile every operation, and keep those with the reference's bits for the next step."""
        for name in OPERATIONS:
            try:
                candidate = self._compile(getattr(self._reference, name))
                same = self._has_equal_bits(name, candidate)
            except Exception as error:  # a compiler that is missing or fails: the reference goes on
                lines = str(error).splitlines() or ["no word"]
                logger.warning("torch cannot compile %s (%s); it is computed as before.", name, lines[0])
                continue
            if same:
                self._ready[name] = candidate
            else:
                logger.info("%s as torch compiles it has other bits, and is not used.", name)

    def begin_step(self) -> None:
        """Take what was compiled into use."""
        while self._ready:
            name, operation = self._ready.popitem()
            self._used[name] = operation

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `Kernels`."""
        self._used["rms_norm"](x, weight, eps, out)

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """See `Kernels`."""
        self._used["gated"](x, activation, out)

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """See `Kernels`."""
        self._used["rotary"](q, k, cos, sin, positions)

    def _has_equal_bits(self, name: str, candidate: Operation) -> bool:
        """Whether two forms of an operation leave the same bits behind in all their arguments."""
        for arguments in self._probes(name):
            expected = [_copy(argument) for argument in arguments]
            getattr(self._reference, name)(*expected)
            candidate(*arguments)
            for got, wanted in zip(arguments, expected, strict=True):
                if isinstance(got, Tensor) and not torch.equal(got, wanted):
                    return False
        return True

    def _probes(self, name: str) -> Iterator[list[Any]]:
        """Arguments of an operation."""
        random = torch.Generator().manual_seed(1)
        for dtype in DTYPES:
            for rows in ROWS:
                for width in WIDTHS:
                    yield self._arguments(name, rows, width, dtype, random)

    def _arguments(self, name: str, rows: int, width: int, dtype: torch.dtype, random: torch.Generator) -> list[Any]:
        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=random).to(self._device, dtype)

        out = torch.zeros(rows, width, dtype=dtype, device=self._device)
        if name == "rms_norm":
            return [numbers(rows, width), numbers(width).float(), 1e-6, out]
        if name == "gated":
            return [numbers(rows, 2 * width), "silu", out]
        angles = torch.randn(rows, 16, generator=random).to(self._device)
        positions = torch.arange(rows, device=self._device)
        return [numbers(rows, 4, 32), numbers(rows, 2, 32), angles.cos(), angles.sin(), positions]


def _copy(argument: Any) -> Any:
    return argument.clone() if isinstance(argument, Tensor) else argument
