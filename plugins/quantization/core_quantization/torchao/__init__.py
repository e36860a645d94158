"""Checkpoints of torchao: integers and narrow floats, described in the headers of safetensors files.

`described` is what a header says about one matrix, `integers` and `floats` are the layouts, `method` the choice of these,
`declaration` the keys of the configuration.
"""
