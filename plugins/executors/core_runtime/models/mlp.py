"""The second half of a block: one MLP, or a router and its experts.

Owns: the order of their operations on a step's views. Never does: allocate, normalize, touch the residual stream by
itself.
Called by: the decoder, once a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from core.api.errors import UserError
from core_runtime.contracts import ActivatedLinear, ExpertsKernel, HoldsSomeExperts, LinearKernel, is_recordable
from core_runtime.layers.adapted_experts import ExpertsAdapters
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.partial_sums import PartialSums
from core_runtime.layers.workspace import ViewCache
from core_runtime.models.expert_places import ExpertPlaces
from core_runtime.models.norm import Norm
from core_runtime.models.step_views import StepViews
from core_runtime.specs.decoder_spec import ExpertsSpec, MLPSpec


class DenseMLP:
    """A dense MLP: down(act(gate(x)) * up(x)), or down(act(up(x))) without a gate.

    spec: spec with all parameters in the activation's name.
    gate_up: gate and up side by side, or up alone.
    inner_norm: norm before down, or None.
    low_rank: two small matrices whose product is added to gate and up; none without them.
    """

    def __init__(
        self,
        kernels: KernelSet,
        spec: MLPSpec,
        gate_up: Linear,
        down: Linear,
        inner_norm: Norm | None = None,
        low_rank: Sequence[Linear] = (),
    ) -> None:
        self.kernels = kernels
        self.spec = spec
        self.gate_up = gate_up
        self.down = down
        self.inner_norm = inner_norm
        self.low_rank = tuple(low_rank)
        self.nbytes = gate_up.nbytes + down.nbytes + sum(linear.nbytes for linear in low_rank)
        self._activated_gate_up: ActivatedLinear | None = None
        if low_rank:
            pass  # the product is changed before its activation
        elif not spec.gated:
            self._activated_gate_up = kernels.activate_within(gate_up, spec.activation)
        elif spec.gate_scale == 1.0 and not spec.sparsity:
            self._activated_gate_up = kernels.gate_within(gate_up, spec.activation)

    @property
    def capturable(self) -> bool:
        """Whether a runtime can record every kernel that a call runs, apart from the operations of the kernel set."""
        linears = [kernel for one in (self.gate_up, self.down, *self.low_rank) for kernel in one.kernels]
        return not self.spec.sparsity and all(is_recordable(linear) for linear in linears)

    def __call__(self, x: Tensor, views: StepViews, out: Tensor, *, accumulate: bool) -> None:
        """Compute out[T, H] (+)= the MLP of x [T, H]."""
        spec = self.spec
        first, inner = views.mlp_views(spec)
        # Adapters change the product before its activation, so in a step with adapters the two are separate calls.
        if self._activated_gate_up is not None and not self.gate_up.is_adapted:
            self._activated_gate_up(x, spec.activation, inner)
        else:
            self.gate_up(x, first)
            if self.low_rank:
                left, right = self.low_rank
                left(x, views.mlp_low_rank)
                right(views.mlp_low_rank, first, accumulate=True)
            self._activate(first, inner)
        if self.inner_norm is not None:
            self.inner_norm(inner, inner)
        if spec.out_scale != 1.0:
            self.kernels.scale(inner, spec.out_scale)
        self.down(inner, out, accumulate=accumulate)

    def _activate(self, first: Tensor, inner: Tensor) -> None:
        spec = self.spec
        if not spec.gated:
            self.kernels.activate(first, spec.activation, inner)
            return
        if spec.gate_scale != 1.0:
            self.kernels.scale(first[:, : spec.size], spec.gate_scale)
        if spec.sparsity:
            _cut(first[:, : spec.size], spec.sparsity)
        self.kernels.gated(first, spec.activation, inner)


def _cut(gate: Tensor, sparsity: float) -> None:
    """Subtract each row's bound from gate [T, I], in place, and set what is below it to zero; see `MLPSpec.sparsity`."""
    values = gate.float()
    spread, mean = torch.std_mean(values, dim=-1, correction=0, keepdim=True)
    gate.copy_((values - (mean + NormalDist().inv_cdf(sparsity) * spread)).clamp(min=0.0))


@dataclass(frozen=True, slots=True)
class SeparateExperts:
    """The experts of a layer one by one, for adapters.

    gate_up, down: both layers of each expert.
    activation, weight_inputs: see `ReferenceExperts`.
    """

    gate_up: Sequence[Linear]
    down: Sequence[Linear]
    activation: str
    weight_inputs: bool


class ExpertsMLP:
    """A router and its experts: the weighted sum of the experts chosen for each token, plus a shared expert (or None).

    spec: routing, and the experts that this rank holds.
    correction: float32 [E], added to the scores for the choice only, or None.
    shared_gate: projection to one number a token, whose sigmoid multiplies the shared expert, or None.
    separate: the same experts one by one; None where they are one weight.

    adapters: adapters of the experts; None: the engine has none.
    told: where the router writes the chosen experts, if answers tell them; None: to the buffer of all blocks.
    """

    def __init__(
        self,
        kernels: KernelSet,
        router: Linear,
        experts: ExpertsKernel,
        spec: ExpertsSpec,
        correction: Tensor | None = None,
        shared: DenseMLP | None = None,
        shared_gate: Linear | None = None,
        separate: SeparateExperts | None = None,
    ) -> None:
        self.kernels = kernels
        self.separate = separate
        self.adapters: ExpertsAdapters | None = None
        self.router = router
        self.experts = experts
        self.routing = spec.routing
        self.correction = correction
        self.shared = shared
        self.shared_gate = shared_gate
        self.places: ExpertPlaces | None = None
        self.told: ViewCache[Tensor] | None = None
        self.late = spec.late
        self.identities = spec.identities
        self.count = spec.count
        self._sums: PartialSums | None = None
        if spec.held is not None:
            if not isinstance(experts, HoldsSomeExperts):
                raise UserError(
                    f"Kernels of the kind {type(experts).__name__} compute all experts of a layer; use one rank, or others "
                    "(--kernels)."
                )
            self._part: HoldsSomeExperts = experts
            self.places = ExpertPlaces(spec.held, torch.device(kernels.device))
        self.nbytes = router.nbytes + experts.nbytes
        if shared is not None:
            self.nbytes += shared.nbytes

    def attach(self, sums: PartialSums) -> None:
        """Bind the experts that this rank holds to the sums of its model."""
        self._sums = sums
        if self.places is not None and not self.places.held.placement.is_ordered:
            sums.reserve_choices(self.routing.top_k)

    def fits(self, gate_up: LinearKernel, down: LinearKernel) -> bool:
        """Whether an expert can take the place of another one of this rank."""
        return self._part.fits(gate_up, down)

    def replace(self, slot: int, gate_up: LinearKernel, down: LinearKernel) -> list[Tensor]:
        """Put another expert in a slot of this rank, between two steps; returns memory that is free now."""
        self.separate = None  # where experts move no adapter changes one, and it would find the former one there
        return self._part.replace(slot, gate_up, down)

    @property
    def capturable(self) -> bool:
        """Whether a runtime can record every kernel that a call runs, apart from the operations of the kernel set."""
        if self.identities or (self.shared is not None and not self.shared.capturable):
            return False
        parts = [*self.router.kernels, self.experts]
        if self.shared_gate is not None:
            parts += self.shared_gate.kernels
        return all(is_recordable(part) for part in parts)

    def __call__(self, x: Tensor, views: StepViews, out: Tensor, *, accumulate: bool) -> None:
        """Compute out[T, H] (+)= the chosen experts of x [T, H], and the shared one. With `late`, the former are written to
        `views.late` instead.
        """
        ids, weights = self.choose(x, views)
        if self.late:
            assert accumulate, "only branches that are added as they are have experts whose output is added later"
            self._chosen(x, ids, weights, views.late, accumulate=False)
        elif self.places is None:
            self._chosen(x, ids, weights, out, accumulate=accumulate)
        else:
            assert self._sums is not None, "only a decoder with a `reduce` runs a part of a model"
            self._over_ranks(self.places, self._sums, x, ids, views, out, accumulate=accumulate)
        if self.shared is not None:
            self._add_shared(self.shared, x, views, out)

    def choose(self, x: Tensor, views: StepViews) -> tuple[Tensor, Tensor]:
        """Return the experts of each token, int64 [T, k], and their weights, float32 [T, k], for the router's x [T, H]."""
        self.router(x, views.router)
        ids = views.expert_ids if self.told is None else self.told(len(x))
        self.kernels.route(views.router, self.routing, self.correction, ids, views.expert_weights)
        return ids, views.expert_weights

    def run(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor) -> None:
        """Compute out[T, H] = the weighted sum of the experts `ids` of x [T, H]."""
        self._chosen(x, ids, weights, out, accumulate=False)

    def _over_ranks(
        self,
        places: ExpertPlaces,
        sums: PartialSums,
        x: Tensor,
        ids: Tensor,
        views: StepViews,
        out: Tensor,
        *,
        accumulate: bool,
    ) -> None:
        """Compute out[T, H] (+)= the experts `ids` of all ranks, each of which computes those that it holds."""
        held, weights, slots = places.held, views.expert_weights, views.expert_slots
        self._part.place(ids, places.table, held.per_rank, held.rank, places.loads, slots)
        if held.placement.is_ordered:
            partial = sums.room(out, accumulate=accumulate)
            self._chosen(x, slots, weights, partial, accumulate=False)
            sums.finish(partial, None, out, accumulate=accumulate)
            return
        # Experts of all ranks are mixed in the order of a sum, so each rank gets the output of every choice.
        outputs = sums.choices(x.shape[0], ids.shape[1])
        self._part.apart(x, slots, weights, outputs)
        adapters = self.adapters if self.adapters is not None and self.adapters.active else None
        before = out.clone() if adapters is not None and accumulate else None
        if adapters is not None:
            adapters.apart(x, slots, weights, outputs)
        sums.reduce(outputs)
        self._part.combine(outputs, ids, weights, held.count, out, accumulate=accumulate)
        if adapters is not None:
            adapters.combine(outputs, ids, weights, held.count, before, out)

    def _chosen(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool) -> None:
        """Compute out[T, H] (+)= the weighted sum of the experts `ids` that this rank holds."""
        returned: Tensor | None = None
        if self.identities:
            ids, share = self._without_identities(ids, weights)
            returned = x.float() * share
        if self.adapters is not None and self.adapters.active:
            self.adapters.run(self.experts, x, ids, weights, out, accumulate=accumulate)
        else:
            self.experts(x, ids, weights, out, accumulate=accumulate)
        if returned is not None:
            out.add_(returned.to(out.dtype))

    def _without_identities(self, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts to compute, int64 [T, k], and the weights of choices that return their input, float32 [T, 1].

        In place of such a choice, the token gets one of its experts once more, with a weight of 0, which is written to
        `weights`.
        """
        is_identity = ids >= self.count
        share = weights.masked_fill(~is_identity, 0.0).sum(-1, keepdim=True)
        chosen = ids.masked_fill(is_identity, 0).amax(-1, keepdim=True)
        weights.masked_fill_(is_identity, 0.0)
        return torch.where(is_identity, chosen, ids), share

    def _add_shared(self, shared: DenseMLP, x: Tensor, views: StepViews, out: Tensor) -> None:
        """Add the shared expert, which all tokens use, to out."""
        if self.shared_gate is None:
            shared(x, views, out, accumulate=True)
            return
        self.shared_gate(x, views.shared_gate)
        shared(x, views, views.shared_out, accumulate=False)
        self.kernels.open_gate(views.shared_gate, views.shared_out)
        self.kernels.add(views.shared_out, out)


BlockMLP = DenseMLP | ExpertsMLP
"""Types of the second half of a block."""
