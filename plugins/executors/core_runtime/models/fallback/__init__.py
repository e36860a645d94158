"""Models of transformers whose attention, cache, matrices and head are the engine's own.

`skeleton` builds the modules without weights, `trial` calls them once to see what they ask of attention, `names` maps a
checkpoint's tensors to them, `loading` puts kernels and tensors in their places, `model` runs steps. `description` is what
the configuration asks, in a process of its own, and `kept` has its answers on disk: everything else here imports torch and
transformers.
"""
