"""The second half of a block: one gated MLP, or a router and its experts.

Owns: the order of their operations on a step's views. Never does: allocate, norm, touch the residual stream by itself.
Called by: the decoder, once a block.
"""

from __future__ import annotations

from torch import Tensor

from core.api.decoder_spec import ExpertsSpec
from core.layers.kernels import KernelSet
from core.layers.linear import Linear
from core.models.step_views import StepViews
from core.plugin.contracts import ExpertsKernel, GatedLinear, is_recordable


class GatedMLP:
    """down(act(gate(x)) * up(x))."""

    def __init__(self, kernels: KernelSet, gate_up: Linear, down: Linear, activation: str) -> None:
        self.kernels = kernels
        self.gate_up = gate_up
        self.down = down
        self.activation = activation
        self.nbytes = gate_up.nbytes + down.nbytes
        self._gated_gate_up: GatedLinear | None = kernels.gate_within(gate_up)

    @property
    def capturable(self) -> bool:
        """Whether a runtime can record every kernel that a call runs, beside the operations of the kernel set."""
        linears = [*self.gate_up.kernels, *self.down.kernels]
        return all(is_recordable(linear) for linear in linears)

    def __call__(self, views: StepViews, out: Tensor, *, accumulate: bool) -> None:
        """out[T, H] (+)= the MLP of `views.normed`."""
        self.run(views.normed, views.gate_up, views.mlp, out, accumulate=accumulate)

    def run(self, x: Tensor, gate_up: Tensor, inner: Tensor, out: Tensor, *, accumulate: bool) -> None:
        """The same of x [T, H], with gate_up [T, 2 * I] and inner [T, I] in between."""
        if self._gated_gate_up is not None:
            self._gated_gate_up(x, self.activation, inner)
        else:
            self.gate_up(x, gate_up)
            self.kernels.gated(gate_up, self.activation, inner)
        self.down(inner, out, accumulate=accumulate)


class ExpertsMLP:
    """The weighted sum of the experts that a router chooses for each token, and of one that all share (or None).

    spec: how the router chooses, and which experts are held.
    correction: float32 [E], counts in the choice alone, or None.
    """

    def __init__(
        self,
        kernels: KernelSet,
        router: Linear,
        experts: ExpertsKernel,
        spec: ExpertsSpec,
        correction: Tensor | None = None,
        shared: GatedMLP | None = None,
    ) -> None:
        self.kernels = kernels
        self.router = router
        self.experts = experts
        self.routing = spec.routing
        self.held = spec.held
        self.correction = correction
        self.shared = shared
        self.nbytes = router.nbytes + experts.nbytes
        if shared is not None:
            self.nbytes += shared.nbytes

    @property
    def capturable(self) -> bool:
        """Whether a runtime can record every kernel that a call runs, beside the operations of the kernel set."""
        if self.held is not None:  # choices of other ranks' experts are dropped by torch
            return False
        if self.shared is not None and not self.shared.capturable:
            return False
        parts = [*self.router.kernels, self.experts]
        return self.kernels.route_capturable and all(is_recordable(part) for part in parts)

    def __call__(self, views: StepViews, out: Tensor, *, accumulate: bool) -> None:
        """out[T, H] (+)= the chosen experts of `views.normed`."""
        x = views.normed
        ids = views.expert_ids
        weights = views.expert_weights
        self.router(x, views.router)
        self.kernels.route(views.router, self.routing, self.correction, ids, weights)
        if self.held is not None:
            start, stop = self.held
            _drop_foreign(ids, weights, start, stop)
        self.experts(x, ids, weights, out, accumulate=accumulate)
        if self.shared is not None:
            self.shared.run(x, views.shared_gate_up, views.shared_mlp, out, accumulate=True)


def _drop_foreign(ids: Tensor, weights: Tensor, start: int, stop: int) -> None:
    """Number the experts from `start` on; a choice of an expert that another rank has counts nothing here."""
    foreign = (ids < start) | (ids >= stop)
    ids.sub_(start)
    ids.masked_fill_(foreign, 0)
    weights.masked_fill_(foreign, 0.0)
