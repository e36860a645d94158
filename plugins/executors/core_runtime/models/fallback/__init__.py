"""Models of transformers whose attention, cache, matrices and head are the engine's own.

`skeleton` builds the modules without weights. `trial` calls them once to record how they use attention. `names` maps a
checkpoint's tensors to them. `loading` installs kernels and tensors. `model` runs steps. The configuration uses
`description`, which runs in a process of its own, and `kept`, its cache on disk. All other modules here import torch
and transformers.
"""
