"""Kernels for GPUs run in Triton's interpreter, which must be asked for before triton is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
