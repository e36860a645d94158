"""The buffers of a step, as the blocks see them.

Owns: `StepViews`. Never does: allocate or compute. Called by: the decoder (makes them), MLPs (read and write them).
"""

from __future__ import annotations

from core.api.decoder_spec import DecoderSpec
from core.layers.workspace import Workspace


class StepViews:
    """The workspace's buffers for one number of tokens."""

    __slots__ = (
        "branch",
        "expert_ids",
        "expert_weights",
        "gate_up",
        "mlp",
        "normed",
        "residual",
        "router",
        "shared_gate_up",
        "shared_mlp",
    )

    def __init__(self, workspace: Workspace, num_tokens: int, spec: DecoderSpec) -> None:
        inner = spec.intermediate_size
        shared = spec.shared_intermediate_size()
        self.residual = workspace.view("residual", num_tokens)
        self.normed = workspace.view("normed", num_tokens)
        self.branch = workspace.view("branch", num_tokens)
        self.gate_up = workspace.view("gate_up", num_tokens, 2 * inner)
        self.mlp = workspace.view("mlp", num_tokens, inner)
        self.shared_gate_up = workspace.view("gate_up", num_tokens, 2 * shared)
        self.shared_mlp = workspace.view("mlp", num_tokens, shared)
        self.router = workspace.view("router", num_tokens)
        self.expert_ids = workspace.view("expert_ids", num_tokens)
        self.expert_weights = workspace.view("expert_weights", num_tokens)
