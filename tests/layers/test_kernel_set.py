"""Which provider's operation runs: the best one that serves it, also where another could do two steps in one call."""

from types import SimpleNamespace

import pytest
import torch

from core.api.reason import Reason
from core_runtime import contracts
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.reference import ReferenceKernels, ReferenceLinear
from core_runtime.models.mlp import DenseMLP
from core_runtime.specs.block_spec import MLPSpec
from core_runtime.weights.formats import Dense


class OwnLinear(ReferenceLinear):
    """A product that runs the gate itself, and says so in its result."""

    def gated(self, x, activation, out):
        """Both in one call."""
        out.fill_(2.0)


class Matrices(ReferenceKernels):
    """Serves matrices, with the gate in the same call, and nothing else."""

    def supports(self, query):
        return [] if query.op == "linear" else [Reason("op", "linear", query.op)]

    def linear(self, weight, *, activation, bias=None):
        return OwnLinear(weight, activation, bias)


class Gates(ReferenceKernels):
    """Serves gates and nothing else."""

    def supports(self, query):
        return [] if query.op == "gated" else [Reason("op", "gated", query.op)]

    def gated(self, x, activation, out):
        out.fill_(1.0)


@pytest.mark.parametrize("providers, expected", [([Gates(), Matrices()], 1.0), ([Matrices(), Gates()], 2.0)])
def test_the_preferred_gate_runs_although_a_product_could_gate_by_itself(providers, expected):
    kernels = KernelSet(providers)
    gate_up = Linear([kernels.linear(Dense(torch.ones(8, 4)), activation="none")])
    down = Linear([kernels.linear(Dense(torch.eye(4)), activation="none")])
    out = torch.empty(1, 4)
    views = SimpleNamespace(mlp_views=lambda mlp: (torch.empty(1, 8), torch.empty(1, 4)))
    mlp = DenseMLP(kernels, MLPSpec(size=4), gate_up, down)
    mlp(torch.ones(1, 4), views, out, accumulate=False)
    assert out.tolist() == [[expected] * 4]


class Old(Gates):
    """Serves operations of the first contract: two activations, whole heads."""

    features = ()

    def supports(self, query):
        return [] if query.op in ("gated", "rotary") else [Reason("op", "gated", query.op)]

    def rotary(self, q, k, cos, sin, positions):
        q.fill_(1.0)


def test_a_call_goes_to_the_first_provider_that_has_what_it_needs():
    kernels = KernelSet([Old()])
    x = torch.ones(1, 8)
    out = torch.empty(1, 4)
    kernels.gated(x, "gelu_tanh", out)
    assert out.tolist() == [[1.0] * 4]
    kernels.gated(2 * x, "relu2", out)
    assert out.tolist() == [[8.0] * 4]
    q = torch.zeros(1, 1, 8)
    angles = torch.zeros(1, 4)
    position = torch.zeros(1, dtype=torch.int64)
    kernels.rotary(q, q, angles, angles, position)
    assert q.sum() == 8
    kernels.rotary(q, torch.zeros(1, 1, 8), angles[:, :2].contiguous(), angles[:, :2].contiguous(), position)
    assert q.tolist() == [[[0.0] * 4 + [1.0] * 4]]


def test_what_can_be_recorded_is_told_by_operation():
    bare = KernelSet([ReferenceKernels()])
    assert not bare.recorded
    able = ReferenceKernels()
    able.capturable = True
    assert KernelSet([able]).recorded >= {"layer_norm", "activate", "relu2", "route", "gated"}


def test_optional_parts_are_seen_where_they_are_and_only_there():
    bare = ReferenceKernels()
    assert isinstance(bare, contracts.Kernels)
    assert isinstance(bare, contracts.HasSoftCap) and isinstance(bare, contracts.HasRoute)
    assert not isinstance(bare, contracts.HasRace) and not contracts.is_recordable(bare)
    bare.capturable = True
    assert contracts.is_recordable(bare)
    assert contracts.recordable_steps(bare) == "never"
