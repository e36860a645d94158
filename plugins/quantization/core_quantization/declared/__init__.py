"""The common part of methods for checkpoints that declare how they are packed.

`part` is a module as the checkpoint stores it. `layout` is the contract of one way to store a matrix, and `method` the
quantization method over a choice of layouts. `patterns` matches the names that declarations leave out. `bits` packs
small integers, `stored` checks types and shapes, `shares` says what shares a scale, and `floats` has layouts of narrow
floats. `held` and `canonical` are the canonical weights of all these methods. `refusal` is the error for declarations
that are not served, `neutral` lists keys of tools without effect on weights, and `arguments` has the arguments of all
these methods.
"""
