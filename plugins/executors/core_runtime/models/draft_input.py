"""The input layer of a draft that takes in hidden states of its target.

Owns: the order of its operations and its buffers. Never does: know where hidden states come from (the draft pass puts
them into the buffer `hidden`), allocate during a step. Called by: the decoder (once a pass), the draft pass (taps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core_runtime.contracts import LinearKernel
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.workspace import Workspace
from core_runtime.models.norm import Norm
from core_runtime.specs.decoder_spec import DecoderSpec


@dataclass(slots=True)
class DraftInputWeights:
    """The weights of a draft's input layer, see `core_runtime.specs.draft_input.DraftInput`.

    linears: `joined` and `taps`, where the draft has them.
    norms: `embed`, `hidden`, `tap_0`, ..., where the draft has them.
    mask_hidden: [1, H or size of the taps] in the dtype of activations, or None.
    """

    linears: Mapping[str, LinearKernel] = field(default_factory=dict)
    norms: Mapping[str, Norm] = field(default_factory=dict)
    mask_hidden: Tensor | None = None


class InputViews:
    """The buffers of one pass.

    every_row: int64 [T], 0 to T - 1.
    hidden: [T, H], written by the caller: for each token the hidden state from which it was sampled.
    pair: [T, 2H], embedding and hidden state side by side.
    embedded, state: [T, H], the two halves of `pair`.
    """

    __slots__ = ("embedded", "every_row", "hidden", "pair", "state")

    def __init__(self, workspace: Workspace, every_row: Tensor, *, hidden_first: bool) -> None:
        rows = len(every_row)
        self.every_row = every_row
        self.hidden = workspace.view("hidden", rows)
        self.pair = workspace.view("pair", rows)
        left, right = self.pair.chunk(2, dim=1)
        self.embedded = right if hidden_first else left
        self.state = left if hidden_first else right


class DraftEntry:
    """The draft's input layer: combines embedding and hidden state for the first block.

    max_tokens: limit of tokens in one pass.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DraftInputWeights,
        kernels: KernelSet,
        workspace: Workspace,
        max_tokens: int,
    ) -> None:
        assert spec.draft_input is not None, "this decoder takes in no hidden states"
        self._spec = spec.draft_input
        self._weights = weights
        self._kernels = kernels
        self._workspace = workspace
        self._tap_norms = [weights.norms[f"tap_{index}"] for index in range(self._spec.tap_norms)]
        every_row = self._every_row = torch.arange(max_tokens, device=workspace.device)
        hidden_first = self._spec.hidden_first
        self.views = workspace.cached(
            "draft_input", lambda rows: InputViews(workspace, every_row[:rows], hidden_first=hidden_first)
        )

    @property
    def linears(self) -> list[LinearKernel]:
        """Return all kernels that a runtime must be able to record."""
        return list(self._weights.linears.values())

    def __call__(self, views: InputViews, residual: Tensor) -> None:
        """Complete `views.pair`, whose half `embedded` is set already, and write the first block's input to residual
        [T, H].
        """
        norms = self._weights.norms
        embed_norm = norms.get("embed")
        if embed_norm is not None:
            embed_norm(views.embedded, views.embedded)
        hidden_norm = norms.get("hidden")
        if hidden_norm is None:
            self._kernels.take_rows(views.hidden, views.every_row, views.state)
        else:
            hidden_norm(views.hidden, views.state)
        if self._spec.kind == "joined":
            self._weights.linears["joined"](views.pair, residual)
        else:
            stream = views.state if self._spec.norms_stream else views.hidden
            self._kernels.take_rows(stream, views.every_row, residual)

    def project(self, taps: Tensor, out: Tensor) -> None:
        """Write to out [T, H] the hidden states that correspond to the target's taps [T, taps x H of the target]."""
        matrix = self._weights.linears.get("taps")
        if matrix is None:
            self._kernels.take_rows(taps, self._every_row[: len(taps)], out)
            return
        if self._tap_norms:
            taps = self._normed(taps)
        matrix(taps, out)

    def mask(self, out: Tensor) -> None:
        """Write to out [1, H] the hidden state of tokens that are not known yet. Leaves `out` unchanged where the draft
        has none.
        """
        if self._weights.mask_hidden is not None:
            self.project(self._weights.mask_hidden, out)

    def _normed(self, taps: Tensor) -> Tensor:
        """Normalize each equal part of the taps with its own norm."""
        out = self._workspace.view("normed_taps", len(taps))
        count = len(self._tap_norms)
        parts = zip(self._tap_norms, taps.chunk(count, dim=1), out.chunk(count, dim=1), strict=True)
        for norm, part, place in parts:
            norm(part, place)
        return out
