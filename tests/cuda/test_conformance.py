"""The kit's own checks of kernel providers, on the Triton kernels in the interpreter."""

from types import SimpleNamespace

import pytest

from core_kernels.triton.kernels import TritonKernels
from core_kernels.triton.manifest import core_spec
from core_kit.case import Skipped
from core_kit.checks import kernels as kit
from tests.on_device import device_name

SHAPES = ((33, 64), (7, 77))
"""One with groups of every size and one with odd sizes; `test_products.py` has more, without so much around them."""
QUICK = ("race_equals_sampler", "masked_race_equals_race", "logprobs_equal_sampler")


def _marked(check):
    marks = () if check.__name__ in QUICK else (pytest.mark.gpu_interpreter,)
    return pytest.param(check, id=check.__name__, marks=marks)


@pytest.mark.parametrize("check", [_marked(check) for check in kit.CHECKS])
def test_kernels(check, monkeypatch):
    monkeypatch.setattr(kit, "SHAPES", SHAPES)
    subject = SimpleNamespace(device=device_name(), loaded=TritonKernels(), manifest=SimpleNamespace(spec=core_spec()))
    try:
        check(subject)
    except Skipped as skipped:
        pytest.skip(str(skipped))
