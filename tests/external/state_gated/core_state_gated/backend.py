"""Gated linear attention: a recurrence for single tokens, a chunked form for several at once."""

import torch
import torch.nn.functional as F

from core_runtime.layers.states import StateStore
from core_state_gated.layer import gated_linear

CHUNK = 16


class Layer:
    """One bound layer: its sizes, its gates' bias, its states [heads, key, value]."""

    def __init__(self, sizes, raw, params):
        self.heads, self.key, self.value = sizes["heads"], sizes["key"], sizes["value"]
        self.bias = params["gate_bias"]
        self.states = StateStore(raw, (self.heads, self.key, self.value))

    def split(self, inputs):
        """q, k [H, T, K], v [H, T, V] and the logarithm of the decay [H, T]."""
        widths = [self.heads * self.key] * 2 + [self.heads * self.value, self.heads]
        q, k, v, gate = inputs.float().split(widths, dim=1)
        q, k, v = (x.unflatten(1, (self.heads, -1)).transpose(0, 1) for x in (q, k, v))
        return q * self.key**-0.5, k, v, F.logsigmoid(gate + self.bias).t()


def recurrent(state, q, k, v, decay):
    """One token: (state, out [H, 1, V])."""
    state = state * decay.exp().unsqueeze(2) + k.transpose(1, 2) @ v
    return state, q @ state


def chunked(state, q, k, v, decay):
    """A few tokens at once: what the state still gives, and what the tokens give each other."""
    total = decay.cumsum(1)
    seen = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    between = (total.unsqueeze(2) - total.unsqueeze(1)).masked_fill(~seen, -torch.inf).exp()
    out = (q * total.exp().unsqueeze(2)) @ state + (q @ k.transpose(1, 2) * between) @ v
    left = (total[:, -1:] - total).exp().unsqueeze(2)
    return state * total[:, -1:].exp().unsqueeze(2) + (k * left).transpose(1, 2) @ v, out


class GatedStates:
    """The contract `StateBackend`."""

    name = "gated_states"
    numerics = "gated-states-1"

    def example_state(self, op):
        """A small layer for the kit."""
        return gated_linear(heads=3, key=8, value=5)

    def state_layout(self, spec, dtype):
        """All matrices."""
        return spec.state_bytes

    def bind_state(self, spec, dtype, raw, params):
        """The layer's handle."""
        return Layer(spec.sizes, raw, params)

    def build_state(self, view):
        """The view has all that is needed."""
        return view

    def forward_state(self, handle, inputs, metadata, out):
        """One sequence after the other, at most `CHUNK` tokens at once."""
        parts, states, start = handle.split(inputs), handle.states.read(metadata), 0
        for index, length in enumerate(metadata.query_lens):
            for first in range(start, start + length, CHUNK):
                rows = slice(first, min(first + CHUNK, start + length))
                form = recurrent if rows.stop - rows.start == 1 else chunked
                states[index], mixed = form(states[index], *(part[:, rows] for part in parts))
                out[rows] = mixed.transpose(0, 1).flatten(1)
            start += length
        handle.states.write(metadata, states)
