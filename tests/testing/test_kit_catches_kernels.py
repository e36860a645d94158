"""Kernel providers that cheat are found by the check that is meant to find them, and by a sentence."""

from __future__ import annotations

import pytest

from core.testing.skeleton import TEMPLATES
from tests.testing.cheats import failing, plugin

KERNELS = (TEMPLATES / "kernels/core_my_plugin/kernels.py").read_text()
KERNEL_CHEATS = {
    "drops the bias": ([("total += self.bias", "pass")], "linear equals"),
    "forgets to accumulate": ([("out += total", "out.copy_(total)")], "linear equals"),
    "drops the minimum": ([("total += part.sum", "0 * part.sum")], "linear equals"),
    "takes every device": ([('if query.device != "cpu":', "if False:")], "is refused with a reason"),
    "tells too few bytes": (
        [("self.shape, self.nbytes = weight.shape, weight.nbytes", "self.shape, self.nbytes = weight.shape, 1")],
        "tells the bytes",
    ),
    "depends on company": (
        [("total = torch.zeros(len(x)", "total = len(x) * 1e-7 + torch.zeros(len(x)")],
        "alone and among",
    ),
}


@pytest.mark.parametrize("changes, words", KERNEL_CHEATS.values(), ids=KERNEL_CHEATS)
def test_kernels(tmp_path, changes, words):
    capabilities = ", capabilities={'devices': ['cpu'], 'batch_invariant': True}"
    source = (
        plugin(tmp_path, "kernels", KERNELS, changes, capabilities)
        + "\ndef build(module): return module.CheatKernels()\n"
    )
    failing(tmp_path, "kernels", source, words)
