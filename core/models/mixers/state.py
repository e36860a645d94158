"""A layer with a state: project, let the backend's recurrence run, project.

Owns: the order of these operations and the buffers that they work on. Never does: know an op, or keep a state.
Called by: the decoder, once a block and step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from core.api.specs import StateSpec
from core.layers.linear import Linear
from core.layers.workspace import Workspace
from core.plugin.contracts import BatchView, LinearKernel, StateBackend, is_recordable_backend


class StateViews:
    """The buffers of one step: inputs [T, W], outputs [T, W']."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, workspace: Workspace, num_tokens: int, spec: StateSpec) -> None:
        self.inputs = workspace.view("state_in", num_tokens, spec.input_size)
        self.outputs = workspace.view("state_out", num_tokens, spec.output_size)


class StateMixer:
    """One block's layer with a state. linears: `in` and `out`; params: of the op, by name in the layer.

    `attach` and `bind` must be called before the first step.
    """

    def __init__(self, spec: StateSpec, linears: Mapping[str, Linear], params: Mapping[str, Tensor]) -> None:
        self.spec, self.params = spec, dict(params)
        self.in_proj, self.out_proj = linears["in"], linears["out"]
        self.nbytes = self.in_proj.nbytes + self.out_proj.nbytes
        self.backend: StateBackend
        self.handle: Any

    @property
    def linears(self) -> list[LinearKernel]:
        """Everything that a runtime must be able to record."""
        return [*self.in_proj.kernels, *self.out_proj.kernels]

    @property
    def capturable(self) -> bool:
        """Whether the backend's calls can be recorded, too."""
        return is_recordable_backend(self.backend)

    def attach(self, workspace: Workspace, tables: tuple[Tensor, Tensor] | None) -> None:
        """Take the step's buffers; positions are the state's own affair, so there are no rotary tables."""
        key = StateViews, self.spec.input_size, self.spec.output_size
        self.views = workspace.cached(key, lambda rows: StateViews(workspace, rows, self.spec))

    def bind(self, backend: StateBackend, handle: Any) -> None:
        """Take the backend and its handle of this layer."""
        self.backend, self.handle = backend, handle

    def build(self, view: BatchView) -> Any:
        """The backend's metadata of a step."""
        return self.backend.build_state(view)

    def __call__(self, x: Tensor, positions: Tensor, metadata: Any, out: Tensor, *, accumulate: bool) -> None:
        """out[T, H] (+)= the layer of x [T, H]; the states move on. metadata: what `build` answered for this step."""
        views = self.views(x.shape[0])
        self.in_proj(x, views.inputs)
        self.backend.forward_state(self.handle, views.inputs, metadata, views.outputs)
        self.out_proj(views.outputs, out, accumulate=accumulate)
