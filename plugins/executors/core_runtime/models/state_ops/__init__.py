"""Recurrences between a layer's projections, as specs: one op a file. Torch-free.

Owns: the definition of each op, in its docstring, and the op's `StateSpec`. Never does: compute, or read a checkpoint.
Called by: families with such layers, backends and their tests. `short_conv` is described at `StateSpec`.

Common to all of them:

state:       one flat vector in float32: first the window of the convolution, the last `kernel` - 1 of its inputs (before
             the convolution and its activation), oldest first, each of all channels; then the recurrent state, in the
             shape that the op's description gives.
convolution: causal, depthwise, over `kernel` tokens, the newest token's tap last; what lies before the sequence is zero.
arithmetic:  float32 throughout, whatever the dtype of inputs and outputs.
chunks:      a step continues from the state; a prompt in pieces, in any batch, computes the same result that it would
             have computed whole, token after token.
padding:     rows after a step's own tokens are neither read nor written.
"""
