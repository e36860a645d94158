"""The halves of blocks (mixers and MLPs) and their connection to the residual stream.

Owns: the norm that each half reads, the treatment of its output, and which of these steps a provider does in one call.
Never does: compute a half. Called by: the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from core_runtime.contracts import AddNorm
from core_runtime.layers.kernels import KernelSet
from core_runtime.models.gated_norm import GatedNorm
from core_runtime.models.norm import Norm
from core_runtime.specs.decoder_spec import BlockSpec, DecoderSpec

Norms = Mapping[str, Norm]


@dataclass(slots=True)
class Half:
    """One half of a block.

    norm: norm of the residual stream that the half reads; None: it reads the stream itself, or the input of the other
        half.
    behind: norm of the half's output; None: there is none.
    direct: whether the half adds to the stream as it computes.
    scale: factor of the half's output. keeps: factor of the stream before the output is added.
    joint: call that adds the output to the stream and normalizes the stream for the next half; None: separate calls.
    is_last_scaled: whether the stream is multiplied after the half, before the next one reads it.
    is_ready: whether the previous half has already normalized the stream for this one.
    blends: whether the stream changes before the half reads it, see `BlockSpec.blends`.
    """

    norm: Norm | None
    behind: Norm | None
    direct: bool
    scale: float = 1.0
    keeps: float = 1.0
    joint: Joint | None = None
    is_last_scaled: bool = False
    is_ready: bool = False
    blends: bool = False


@dataclass(frozen=True, slots=True)
class Joint:
    """The norm of a branch, its addition to the residual stream, and the norm of the next half, in one call.

    add: adds the branch alone, where adapters change one of the norms.
    behind: norm of the branch; None: there is none.
    following: norm of the next half.
    """

    add_norm: AddNorm
    add: Callable[[Tensor, Tensor], None]
    behind: Norm | None
    following: Norm

    def __call__(self, branch: Tensor, residual: Tensor, normed: Tensor) -> None:
        """Add branch to residual and write the norm of the sum to normed, all [T, H]. The contents of branch are
        undefined afterwards.
        """
        if self.following.is_adapted or (self.behind is not None and self.behind.is_adapted):
            # The combined call has one weight for all rows. One after the other, the bits are the same (`AddNorm`).
            if self.behind is not None:
                self.behind(branch, branch)
            self.add(branch, residual)
            self.following(residual, normed)
            return
        before = None if self.behind is None else self.behind.weight
        self.add_norm(branch, before, residual, self.following.weight, self.following.eps, normed)


@dataclass(frozen=True, slots=True)
class Halves:
    """The two halves of one block. mixer: the first half. mlp: the second half."""

    mixer: Half
    mlp: Half


def halves_of(spec: DecoderSpec, kernels: KernelSet, norms: Sequence[Norms]) -> list[Halves]:
    """Return the halves of each block. norms: norms of each block, by role."""
    adds_as_is = spec.residual_scale == 1.0
    found = []
    for block, own in zip(spec.blocks, norms, strict=True):
        side_by_side = spec.order in ("parallel", "parallel_two")
        mixes_directly = adds_as_is and _is_plain(own, "input", "post_attention")
        # A branch that is scaled cannot be added to the stream while it is computed.
        mixes_directly &= block.mixer_scale == block.beside_scale == block.mixer_keeps == 1.0
        thinks_directly = adds_as_is and _is_plain(own, "input" if side_by_side else "pre_mlp", "post_mlp")
        thinks_directly &= block.mlp_scale == block.mlp_keeps == 1.0
        mixer = Half(
            None if block.wide else own.get("input"), own.get("post_attention"), mixes_directly, keeps=block.mixer_keeps
        )
        mlp = Half(
            None if side_by_side else own.get("pre_mlp"),
            own.get("post_mlp"),
            thinks_directly,
            block.mlp_scale,
            block.mlp_keeps,
        )
        (mlp if block.has_mlp else mixer).is_last_scaled = block.layer_scalar or spec.layer_inputs is not None
        (mixer if block.mixers else mlp).blends = bool(block.blends) or block.takes_aside
        mlp.blends |= spec.streams is not None
        found.append(Halves(mixer, mlp))
    _join(spec, kernels, _in_order(spec.blocks, found))
    return found


def _is_plain(norms: Norms, before: str, behind: str) -> bool:
    return before in norms and behind not in norms


def _in_order(blocks: Sequence[BlockSpec], halves: Sequence[Halves]) -> list[Half]:
    """Return the halves that change the residual stream, in order."""
    found = []
    for block, both in zip(blocks, halves, strict=True):
        if block.aside:
            continue
        if block.mixers:
            found.append(both.mixer)
        if block.has_mlp:
            found.append(both.mlp)
    return found


def _join(spec: DecoderSpec, kernels: KernelSet, halves: Sequence[Half]) -> None:
    """Set `joint` on the halves for which a provider has a combined call."""
    add_norm = kernels.add_rms_norm
    if add_norm is None or spec.residual_scale != 1.0 or spec.order == "residual_post":
        return
    for half, following in pairwise(halves):
        norm = following.norm
        scaled = half.scale != 1.0 or half.keeps != 1.0 or half.is_last_scaled
        if half.direct or scaled or following.blends or norm is None or not _fits(norm, half.behind):
            continue
        half.joint = Joint(add_norm, kernels.add, half.behind, norm)
        following.is_ready = True


def _fits(following: Norm, behind: Norm | None) -> bool:
    """Whether one call can compute both norms."""
    if following.is_centred or isinstance(following, GatedNorm):
        return False
    # The combined call has one epsilon for both norms.
    return behind is None or (behind.eps == following.eps and not behind.is_centred)
