"""Launches that were bound: the kernel gets what Triton would give it, and Triton is asked for a form once.

Over a driver that launches nothing, for a chip that is not there, in a process of its own: the suite's own interprets kernels.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

DRIVER = """
import json
import sys
from unittest import mock

import torch
from triton import knobs
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from core_kernels.triton import kernels as provider
from core_kernels.triton.compiling import bound, launches
from core_kernels.triton.compiling.ahead import target_of
from core_kernels.triton.norm import add_norm_rows, norm_rows
from core_kernels.triton.products.linear import linear_of
from core_kernels.triton.products.tiles import tiles_with
from core_runtime.weights.formats import Dense

sent, seen = [], []


class Launch:
    def __init__(self, source, metadata):
        self.source = source.hash()

    def __call__(self, *args):
        grid, stream, function = args[:3], args[3], args[4]
        values = [id(value) if isinstance(value, torch.Tensor) else str(value) for value in args[9:]]
        if args[7] is not None:
            args[7](args[6])
        sent.append((self.source, grid, stream, function, values))


class Utils:
    def load_binary(self, *args):
        return 1, 2, 32, 0, 1024

    def unload_module(self, module):
        pass

    def get_device_properties(self, device):
        return {"max_shared_mem": 227 << 10}


class Driver(launches.StandIn):
    launcher_cls = Launch
    utils = Utils()

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 77


asked = []
own = bound.TRITONS_OWN


def counted(function, *args, **options):
    asked.append(function.fn.__name__)
    return own(function, *args, **options)


driver.set_active(Driver(target_of("sm_90")))
x, residual, out = torch.zeros(3, 6, 64, dtype=torch.bfloat16).unbind(0)
odd = torch.zeros(6 * 64 + 1, dtype=torch.bfloat16)[1:].view(6, 64)
weight = torch.ones(64)
linear = linear_of(Dense(torch.zeros(128, 64, dtype=torch.bfloat16)), "none", None, tiles_with(None))
wide = torch.zeros(6, 128, dtype=torch.bfloat16)


def launch():
    for rows in (6, 1, 5, 6):
        norm_rows(x[:rows], weight, None, 1e-5, out[:rows], centred=False)
        norm_rows(odd[:rows], weight, weight, 1e-6, out[:rows], centred=True)
        add_norm_rows(x[:rows], None, residual[:rows], weight, 1e-5, out[:rows])
        linear(x[:rows], wide[:rows])


def tensors(calls):
    return [(source, grid, stream, function, len(values)) for source, grid, stream, function, values in calls]


launch()
plain, sent[:] = list(sent), []
"""

SAME = (
    DRIVER
    + """
provider.TritonKernels()
provider.TritonKernels()
with mock.patch.object(bound, "TRITONS_OWN", counted), mock.patch.object(JITFunction, "run", counted):
    launch()
    first, asked[:] = len(asked), []
    bounded, sent[:] = list(sent), []
    launch()
with mock.patch.object(launches, "architecture_of", lambda device: "sm_90"), launches.written() as calls:
    launch()
numbers = [[value for value in values if isinstance(value, str)] for *_, values in plain]
twice = list(sent)
again = [[value for value in values if isinstance(value, str)] for *_, values in twice]
knobs.runtime.launch_enter_hook.add(seen.append)
launch()
knobs.runtime.launch_enter_hook.remove(seen.append)
launch()
print(json.dumps({
    "same": tensors(plain) == tensors(bounded) == tensors(twice) and numbers == again,
    "launches": len(plain), "first": first, "asked": asked, "recorded": len(calls), "seen": len(seen),
}))
"""
)


def run(code: str, cache: Path) -> object:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(cache)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_bound_launch_is_tritons_own(tmp_path: Path) -> None:
    """The same kernel, grid, stream, numbers and constants, of aligned and other addresses. Compilation ahead and profilers
    still see all launches.
    """
    found = run(SAME, tmp_path)
    assert found["same"] and found["launches"] == 16
    assert found["first"] < 16 and found["asked"] == []
    assert found["recorded"] > 4 and found["seen"] == 16
