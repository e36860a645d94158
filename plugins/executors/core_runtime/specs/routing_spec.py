"""The description of a router's choice of experts. Torch-free.

Owns: `RoutingSpec`. Never does: choose (the kernels do). Called by: families, which fill it in, layers of experts, kernels.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class RoutingSpec(msgspec.Struct, frozen=True):
    """The rule by which a router chooses `top_k` of E experts for a token.

    scores:      function of the logits: `softmax` over all experts, `sigmoid` of each, or `sparse_mixer` (below).
    renormalize: whether the chosen scores are divided by (their sum + `epsilon`). For a softmax, this gives the softmax over
                 the chosen logits. factor: multiplies the weights last.
    groups:      number of equal groups of experts, of which only the `top_groups` best take part (1: no limit).
    group_rank:  rank of a group: its best choice (`best`), or the sum of its two best (`best_two`).

    `sparse_mixer` (SparseMixer-v2, Liu et al. 2024, arXiv 2409.12136, as Phi-3.5-MoE infers) chooses the largest logits one
    after the other. The weight of one is its share in the softmax over those not chosen before it, without any whose
    distance from it, divided by the larger of it and their size, exceeds 2 * `jitter`. It has neither groups nor a bias,
    and nothing is divided.
    """

    top_k: int
    scores: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"
    renormalize: bool = True
    factor: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_rank: Literal["best", "best_two"] = "best"
    epsilon: float = 0.0
    jitter: float = 0.0

    def problem(self, biased: bool) -> str | None:
        """Return a sentence when the fields contradict each other, else None. biased: whether a bias counts in the choice."""
        plain = self.groups == 1 and not self.renormalize and not biased
        if self.scores == "sparse_mixer" and not plain:
            return f"{self}: a sparse mixer has no groups, no bias and no renormalization"
        return None
