"""Runs code in a process of its own, which must not import torch: starts that need no torch do not wait for it."""

import subprocess
import sys


def run_torch_free(code: str, *words: str) -> str:
    """Return the output of some Python code; it fails if the code does, or if torch was imported in the end."""
    program = f"import sys\nsys.path[:] = {sys.path!r}\n{code}\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
