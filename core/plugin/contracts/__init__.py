"""The contracts: what the object returned by `core_load` must offer, one kind a file; a plugin imports them from here.

Owns: nothing but the names. Called by: plugins, executor, models and config.

T tokens, B sequences, Hq/Hkv query and key-value heads, D head size, N outputs, K inputs. Tensors between layers have the
platform's activation dtype; outputs are given by the caller; a kernel never allocates what it returns.
"""

from core.plugin.contracts.attention import AttentionBackend, AttentionParams, BatchView, LatentBackend, StateBackend
from core.plugin.contracts.kernels import (
    ExpertsKernel,
    GatedLinear,
    GatedOperation,
    HasGroupedExperts,
    HeadsKernel,
    Kernels,
    LinearKernel,
    PreparesInto,
    RouteKernel,
)
from core.plugin.contracts.loader import Loader
from core.plugin.contracts.model import ModelFamily
from core.plugin.contracts.platform import CapturedCalls, MemoryTag, Platform, Runtime
from core.plugin.contracts.quantization import QuantizationMethod
from core.plugin.contracts.sampling import LogprobsKernel, RaceKernel
from core.plugin.contracts.speculative import Proposer, ProposerInput

__all__ = [
    "AttentionBackend",
    "AttentionParams",
    "BatchView",
    "CapturedCalls",
    "ExpertsKernel",
    "GatedLinear",
    "GatedOperation",
    "HasGroupedExperts",
    "HeadsKernel",
    "Kernels",
    "LatentBackend",
    "LinearKernel",
    "Loader",
    "LogprobsKernel",
    "MemoryTag",
    "ModelFamily",
    "Platform",
    "PreparesInto",
    "Proposer",
    "ProposerInput",
    "QuantizationMethod",
    "RaceKernel",
    "RouteKernel",
    "Runtime",
    "StateBackend",
]
