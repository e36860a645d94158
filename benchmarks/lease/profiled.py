"""`python -m benchmarks.lease.profiled KERNEL DEVICE tiny|full`: call one kernel ten times, for a profiler around it.

Owns: the call. Called by: stage 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from benchmarks.lease.place import Place


def call_of(name: str, place: Place) -> Callable[[], object]:
    """Return the call of a kernel at a size that matters."""
    from benchmarks.lease import attention, small

    if name == "attention":
        return attention.case_of(place, "triton", *place.pick(([1] * 64, [8192] * 64), ([1] * 2, [20] * 2)))
    if name == "limits":
        return small.draw_of(place, 64, "top-p")
    from core_kernels.triton.kernels import TritonKernels
    from core_runtime.weights.formats import Dense

    outputs, inputs = place.pick((28672, 4096), (64, 64))
    linear = TritonKernels().linear(Dense(place.random(outputs, inputs)), activation="none")
    x, out = place.random(1, inputs), place.random(1, outputs)
    return lambda: linear(x, out)


def main() -> None:
    """Call it, and wait."""
    name, device, size = sys.argv[1:]
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    place = Place(device, tiny=size == "tiny")
    call = call_of(name, place)
    for _ in range(place.pick(10, 1)):
        call()
    place.synchronize()


if __name__ == "__main__":
    main()
