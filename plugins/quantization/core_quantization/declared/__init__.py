"""The common part of methods for checkpoints that declare how they are packed.

`part` is a module as the checkpoint stores it, `layout` the contract of one way to store a matrix, `method` the
quantization method over a choice of layouts, `patterns` the names that declarations leave out, `bits` the packing of small
integers, `stored` the check of types and shapes, `shares` what shares a scale, `floats` layouts of narrow floats, `held` and
`canonical` the canonical weights of all these methods, `refusal` what of a declaration is not served, `neutral` keys of tools
that say nothing about weights, `arguments` the arguments of all these methods.
"""
