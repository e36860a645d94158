"""The buffers of a step, as views for its blocks.

Owns: `StepViews`, and which buffers of the workspace they need. Never does: compute. Called by: the decoder (reserves and makes
them), MLPs (read and write them).
"""

from __future__ import annotations

import torch
from torch import Tensor

from core_runtime.layers.workspace import Workspace
from core_runtime.models.mixers.index import reserve_chosen
from core_runtime.specs.block_parts import kept_buffer
from core_runtime.specs.decoder_spec import DecoderSpec, MLPSpec


def reserve_step(
    workspace: Workspace, spec: DecoderSpec, max_tokens: int, dtype: torch.dtype, *, divided: bool
) -> None:
    """Reserve the buffers of a step of at most `max_tokens` tokens.

    dtype: of the tensors between layers. divided: whether other ranks have parts of the model's layers.
    """
    for name, width in spec.buffers().items():
        workspace.reserve(name, max_tokens, width, dtype)
    _, top_k = spec.router_widths()
    workspace.reserve("expert_ids", max_tokens, top_k, torch.int64)
    if spec.copies_rows():
        workspace.reserve("every_row", max_tokens, 1, torch.int64)
        torch.arange(max_tokens, out=workspace.buffer("every_row")[:, 0])
    workspace.reserve("expert_weights", max_tokens, top_k, torch.float32)
    workspace.reserve("expert_slots", max_tokens, top_k if divided else 0, torch.int64)
    reserve_chosen(workspace, max_tokens, spec.chosen_keys())


class StepViews:
    """The workspace's buffers for one number of tokens. For the buffers of one MLP see `mlp_views`."""

    __slots__ = (
        "_mlps",
        "_num_tokens",
        "_workspace",
        "aside",
        "beside",
        "branch",
        "embedded",
        "entry",
        "every_row",
        "expert_ids",
        "expert_slots",
        "expert_weights",
        "kept",
        "late",
        "mlp_low_rank",
        "normed",
        "normed_mlp",
        "pair",
        "residual",
        "router",
        "shared_gate",
        "shared_out",
    )

    def __init__(self, workspace: Workspace, num_tokens: int, spec: DecoderSpec) -> None:
        self._workspace = workspace
        self._num_tokens = num_tokens
        self._mlps: dict[tuple[int, bool], tuple[Tensor, Tensor]] = {}
        widths = spec.buffers()

        def view(name: str, usual: str) -> Tensor:
            """Return a buffer that some models lack, or else `usual`, which is then never used in its place."""
            return workspace.view(name if name in widths else usual, num_tokens)

        self.residual = workspace.view("residual", num_tokens)
        self.normed = workspace.view("normed", num_tokens)
        self.branch = workspace.view("branch", num_tokens)
        self.router = workspace.view("router", num_tokens)
        self.expert_ids = workspace.view("expert_ids", num_tokens)
        self.expert_weights = workspace.view("expert_weights", num_tokens)
        self.expert_slots = workspace.view("expert_slots", num_tokens)
        self.embedded = view("embedded", "residual")
        self.normed_mlp = view("normed_mlp", "normed")
        self.beside = view("beside", "branch")
        self.pair = view("pair", "residual")
        self.late = view("late", "branch")
        self.aside = view("aside", "branch")
        self.entry = view("entry", "residual")
        self.mlp_low_rank = view("mlp_low_rank", "router")
        names = {name for block in spec.blocks for name in block.keeps_as}
        self.kept = {name: workspace.view(kept_buffer(name), num_tokens) for name in names}
        self.every_row = workspace.view("every_row", num_tokens)[:, 0] if spec.copies_rows() else self.expert_ids
        self.shared_gate = view("shared_gate", "branch")
        self.shared_out = view("shared_out", "branch")

    def mlp_views(self, mlp: MLPSpec) -> tuple[Tensor, Tensor]:
        """Return the buffers of an MLP: its first product [T, 2 * I or I], and its inner numbers [T, I]."""
        key = mlp.size, mlp.gated
        found = self._mlps.get(key)
        if found is None:
            width = 2 * mlp.size if mlp.gated else mlp.size
            first = self._workspace.view("gate_up", self._num_tokens, width)
            inner = self._workspace.view("mlp", self._num_tokens, mlp.size)
            found = first, inner
            self._mlps[key] = found
        return found
