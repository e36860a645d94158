"""Experts beside a block's MLP, each with norms of its own (Gemma 4).

Owns: the order of their operations on a step's views. Never does: choose experts or compute one (`ExpertsMLP` does).
Called by: the decoder, once a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from core_runtime.layers.partial_sums import PartialSums
from core_runtime.models.mlp import ExpertsMLP
from core_runtime.models.norm import Norm
from core_runtime.models.step_views import StepViews


@dataclass(slots=True)
class ExpertsBeside:
    """An MLP, the shared expert of `experts`, and its other experts, which read the residual stream by themselves.

    router, before, behind: norms of what the router reads, of what the experts read, and of their output.
    of_mlp: norm of the MLP's output.
    factors: float32 [E], factors of the weights of the chosen experts.
    """

    experts: ExpertsMLP
    router: Norm
    before: Norm
    behind: Norm
    of_mlp: Norm
    factors: Tensor

    @property
    def nbytes(self) -> int:
        """Return the bytes of all matrices."""
        return self.experts.nbytes

    @property
    def capturable(self) -> bool:
        """Whether a runtime can record every call: not the factors of the weights."""
        return False

    def attach(self, sums: PartialSums) -> None:
        """Bind the experts that this rank holds to the sums of its model."""
        self.experts.attach(sums)

    def __call__(self, x: Tensor, views: StepViews, out: Tensor, *, accumulate: bool) -> None:
        """Compute out[T, H] = both, of x [T, H] and of the residual stream in `views`; nothing may be in out yet."""
        assert not accumulate, "the sum of both is normalized before it is added"
        shared = self.experts.shared
        assert shared is not None, "a block with experts beside its MLP has both"
        self.router(views.residual, views.late)
        ids, weights = self.experts.choose(views.late, views)
        weights.mul_(self.factors[ids])
        self.before(views.residual, views.late)
        self.experts.run(views.late, ids, weights, out)
        self.behind(out, out)
        shared(x, views, views.late, accumulate=False)
        self.of_mlp(views.late, views.late)
        self.experts.kernels.add(views.late, out)
