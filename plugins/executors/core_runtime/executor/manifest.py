"""Manifest of the executor `torch`. Torch-free; the device is opened when the executor is built."""

from __future__ import annotations

from core.plugin.manifest_of import manifest_of

CONTRACT = 1

core_spec, core_load = manifest_of(
    "torch",
    "models in PyTorch, on any platform; the worker runs in the engine's process",
    "core_runtime.executor.uniproc:UniprocMaker",
)
