"""Steps that launch a kernel or two, named in another process by `module:name`: the models of tests of the warm-up."""

import torch
import triton
import triton.language as tl

from core.api.errors import UserError
from core_kernels.triton.elementwise import add_rows, scale_rows


@triton.jit
def wrong(x: tl.tensor) -> None:
    """A kernel that no compiler takes."""
    tl.store(x, tl.arange(0, 3))


def one_kernel(config: str, chip: str) -> None:
    """Launch `scale`."""
    scale_rows(torch.zeros(3, 64, dtype=torch.bfloat16, device="meta"), 2.0)


def another_kernel(x: torch.Tensor) -> None:
    """Launch `add`, which the warm-up does not know."""
    add_rows(x, x)


def one_that_fails(config: str, chip: str) -> None:
    """Launch `scale`, and a kernel that cannot be compiled."""
    one_kernel(config, chip)
    wrong[(1,)](torch.zeros(3, device="meta"))


def unknowable(config: str, chip: str) -> None:
    """Need a device."""
    raise UserError("what it launches depends on numbers")
