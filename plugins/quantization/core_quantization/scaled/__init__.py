"""Matrices that checkpoints store as narrow numbers with scales of their own.

`layouts` has one class for each kind of number. `method` chooses a layout by the tensors of a part, and reads the keys
of declarations.
"""
