"""Recurrences between a layer's projections, as specs: one op a file. Torch-free.

Owns: what each op computes, in its docstring, and the `StateSpec` that says so. Never does: compute, or read a checkpoint.
Called by: families with such layers, backends and their tests. `short_conv` is described at `StateSpec`.

Common to all of them:

state:       one flat vector in float32: first the window of the convolution, the last `kernel` - 1 of its inputs (before
             the convolution and its activation), oldest first, each of all channels; then the recurrent state, in the
             shape that the op's description gives.
convolution: causal, depthwise, over `kernel` tokens, the newest token's tap last; what lies before the sequence is zero.
arithmetic:  float32 throughout, whatever the dtype of inputs and outputs.
chunks:      a step continues where the state stands; a prompt in pieces, in whatever company, computes what it would
             have computed whole, token after token.
padding:     rows behind a step's own tokens are neither read nor written.
"""
