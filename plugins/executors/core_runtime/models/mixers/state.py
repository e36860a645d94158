"""A layer with a state: project, run the backend's recurrence, project.

Owns: the order of these operations, the buffers that they work on, and the handles of adapters that change the recurrence.
Never does: know an op, or keep a state.
Called by: the decoder, once a block and step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from core.api.config import CacheConfig
from core.api.errors import PluginError
from core.api.specs import StateSpec
from core_runtime.contracts import AttentionParams, BatchView, FillsStates, LinearKernel, StateBackend
from core_runtime.layers.adapted_states import StateAdapters, StateStep
from core_runtime.layers.linear import Linear
from core_runtime.layers.whole_change import WholeChange
from core_runtime.layers.workspace import Workspace
from core_runtime.models.mixers.cached import CachedMixer


class StateViews:
    """The buffers of one step: inputs [T, W], outputs [T, W']."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, workspace: Workspace, num_tokens: int, spec: StateSpec) -> None:
        self.inputs = workspace.view("state_in", num_tokens, spec.input_size)
        self.outputs = workspace.view("state_out", num_tokens, spec.output_size)


class StateMixer(CachedMixer):
    """The layer with a state of one block.

    linears: `in` and `out`.
    params: parameters of the op, by name in the layer.
    adapters: adapters of the recurrence; None: the engine has none.

    `attach` and `bind_cache` must be called before the first step.
    """

    def __init__(self, spec: StateSpec, linears: Mapping[str, Linear], params: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.spec = spec
        self.params = dict(params)
        self.in_proj = linears["in"]
        self.out_proj = linears["out"]
        self.nbytes = self.in_proj.nbytes + self.out_proj.nbytes
        self.adapters: StateAdapters | None = None

    is_plain = True
    """Whether the mixer consists of kernels and the backend alone."""

    @property
    def linears(self) -> list[LinearKernel]:
        """Return all kernels that a runtime must be able to record."""
        return [*self.in_proj.kernels, *self.out_proj.kernels]

    def attach(self, workspace: Workspace, tables: tuple[Tensor, Tensor] | None) -> None:
        """Bind the step's buffers. Positions are in the state itself, so there are no rotary tables."""
        key = StateViews, self.spec.input_size, self.spec.output_size
        self.views = workspace.cached(key, lambda rows: StateViews(workspace, rows, self.spec))

    def layer_bytes(self, backend: StateBackend, cache: CacheConfig) -> int:
        """Return the bytes of a sequence's state, as planned. Raises PluginError when the backend needs more."""
        planned = self.spec.bytes_in(cache.state_dtype)
        told = backend.state_layout(self.spec, cache.state_dtype)
        if not 0 < told <= planned:
            raise PluginError(
                f"attention backend '{backend.name}' wants {told} bytes for a state of {self.spec.op}; expected at most "
                f"{planned}, which is what the model's family plans."
            )
        return planned

    def bind_cache(
        self, backend: StateBackend, cache: CacheConfig, raw: Tensor, learned: AttentionParams | None
    ) -> None:
        """Bind the backend and this layer's blocks: raw uint8 [num_blocks, block bytes]."""
        handle = backend.bind_state(self.spec, cache.state_dtype, raw, self.params)
        self.bind(backend, handle)
        self._place = cache.state_dtype, raw

    def build(self, view: BatchView) -> Any:
        """Return the metadata of a step: the backend's, or what it can be divided from in an engine with adapters."""
        return self.backend.build_state(view) if self.adapters is None else StateStep(self.backend, view)

    def fill(self, blocks: Tensor, rows: Tensor) -> None:
        """Write a sequence's state of cross attention; see `FillsStates`."""
        assert isinstance(self.backend, FillsStates), "selection takes backends with the op alone"
        self.backend.fill_state(self.handle, blocks, rows)

    def __call__(self, x: Tensor, positions: Tensor, metadata: Any, out: Tensor, *, accumulate: bool) -> None:
        """Compute out[T, H] (+)= the layer of x [T, H], and advance the states. metadata: the result of `build` for
        this step.
        """
        views = self.views(x.shape[0])
        self.in_proj(x, views.inputs)
        if self.adapters is None:
            self.backend.forward_state(self.handle, views.inputs, metadata, views.outputs)
        elif not self.adapters.active:
            self.backend.forward_state(self.handle, views.inputs, metadata.whole, views.outputs)
        else:
            self._advance_parts(self.adapters, metadata, views)
        self.out_proj(views.outputs, out, accumulate=accumulate)

    def _advance_parts(self, adapters: StateAdapters, step: StateStep, views: StateViews) -> None:
        """Advance the states of sequences whose adapters change the recurrence, and of those beside them."""
        for change, (_, places, metadata) in adapters.parts(step):
            handle = self.handle if change is None else self._handle_of(change)
            if places is None:
                self.backend.forward_state(handle, views.inputs, metadata, views.outputs)
                continue
            outputs = views.outputs.new_empty(len(places), self.spec.output_size)
            self.backend.forward_state(handle, views.inputs[places], metadata, outputs)
            views.outputs[places] = outputs

    def _handle_of(self, change: WholeChange) -> Any:
        """Return the backend's handle of this layer with an adapter's tensors, on the cache that is bound now."""
        if change.bound is not self.handle:
            params = {**self.params, **change.params}
            change.handle = self.backend.bind_state(self.spec, *self._place, params)
            change.bound = self.handle
        return change.handle
