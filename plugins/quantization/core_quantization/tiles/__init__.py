"""Integers that lie in tiles of 16 by 16, in the order in which one kind of GPU multiplies them (Marlin and its kin).

`places` says where each integer of a tile lies, `sparse` reads the indices of matrices of which two numbers of four are stored,
and `layout` turns both into canonical weights. Called by: the methods `gptq` and `compressed-tensors`.
"""
