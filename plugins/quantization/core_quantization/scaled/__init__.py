"""Matrices that checkpoints store as narrow numbers with scales of their own.

`layouts` has one class a kind of number, `method` the choice by the tensors that are there and the keys of declarations.
"""
