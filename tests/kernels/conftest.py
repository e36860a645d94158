import pytest
import torch

from core.api.reason import Reason
from core_platforms.cpu.extension import kernels_or_reason
from core_platforms.cpu.kernels import NativeKernels


@pytest.fixture(scope="session")
def native():
    module = kernels_or_reason()
    if isinstance(module, Reason):
        pytest.skip(str(module))
    return module


@pytest.fixture
def kernels(native):
    torch.manual_seed(0)
    torch.set_num_threads(1)  # two pools of spinning threads would wait for each other
    return NativeKernels(2)


def runnable():
    module = kernels_or_reason()
    return ["none"] if isinstance(module, Reason) else module.isas()


@pytest.fixture(params=runnable())
def isa(request, native):
    """Each instruction set that runs here, in turn."""
    best = native.isa()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(best)
