"""Layers with a state by family: how each family's configuration names the same sizes.

Owns: functions (configuration, index of the layer) → `StateSpec`, or None for a layer without a state. Absent keys have
the values of transformers' configuration classes. Never does: know an op's formula (`core_runtime.models.state_ops`),
or names of tensors. Called by: rows of families. Errors: UserError that names the key.
"""
