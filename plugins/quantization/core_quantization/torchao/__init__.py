"""Checkpoints of torchao: integers and narrow floats, described in the headers of safetensors files.

`described` is a header's description of one matrix, `integers` and `floats` are the layouts, `method` chooses among
them, and `declaration` has the keys of the configuration.
"""
