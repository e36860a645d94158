"""The contracts: interfaces of the objects that `core_load` returns, one kind per file; plugins import them from here.

Owns: only the names. Called by: plugins, executor, models and config.

T tokens, B sequences, Hq/Hkv query and key-value heads, D head size, N outputs, K inputs. Tensors between layers have the
platform's activation dtype. The caller provides the outputs; a kernel never allocates its result.

An optional part of a contract is a small Protocol of its own (`HasExperts`, `Recordable`, ...). An object implements it
completely or not at all; the engine checks once, while a model is built.
"""

from core_formats.contract import ResponseFormats
from core_grammars.contract import ForcesTokens, GrammarBackend, GrammarVocabulary, Matcher
from core_runtime.contracts.ahead import WarmsUp, WarmUp
from core_runtime.contracts.attention import (
    AttentionBackend,
    AttentionParams,
    BatchView,
    HasExampleState,
    HeadTurn,
    LatentBackend,
    MovesKeys,
    StateBackend,
    TurnsHeads,
)
from core_runtime.contracts.experts_kernels import (
    ExpertsKernel,
    GatedOperation,
    HasExperts,
    HasGroupedExperts,
    HasRoute,
    RouteKernel,
)
from core_runtime.contracts.kernels import (
    AddNorm,
    BeginsSteps,
    HasActivate,
    HasAddNorm,
    HasFeatures,
    HasHeads,
    HasLayerNorm,
    HasLogprobs,
    HasMaskedRace,
    HasOpenGate,
    HasRace,
    HasSoftCap,
    HasTakeRows,
    HeadsKernel,
    Kernels,
)
from core_runtime.contracts.linear_kernels import (
    ActivatedLinear,
    HasActivated,
    HasGated,
    LinearKernel,
    PreparesInto,
    SavedKernel,
    SavesKernels,
    SumsInSegments,
)
from core_runtime.contracts.loader import Loader, ResolvesTensors
from core_runtime.contracts.logits_processor import (
    BatchChanges,
    HasExampleParams,
    LogitsProcessor,
    LogitsRow,
    NeedsOrder,
)
from core_runtime.contracts.model import HasRow, ModelFamily
from core_runtime.contracts.platform import (
    CapturedCalls,
    Captures,
    CapturesSizes,
    CopiesAside,
    Downloads,
    Event,
    MemoryTag,
    Platform,
    Releases,
    Runtime,
    Trims,
    Uploads,
)
from core_runtime.contracts.quantization import QuantizationMethod
from core_runtime.contracts.recording import Recordable, RecordableBackend, is_recordable, recordable_steps
from core_runtime.contracts.sampling import LogprobsKernel, MaskedRaceKernel, RaceCall, RaceKernel
from core_runtime.contracts.speculative import (
    DraftHeads,
    DraftView,
    HasTree,
    HearsResults,
    KnowsRequests,
    NeedsHidden,
    Proposer,
    ProposerInput,
    RequestFacts,
)

__all__ = [
    "ActivatedLinear",
    "AddNorm",
    "AttentionBackend",
    "AttentionParams",
    "BatchChanges",
    "BatchView",
    "BeginsSteps",
    "CapturedCalls",
    "Captures",
    "CapturesSizes",
    "CopiesAside",
    "Downloads",
    "DraftHeads",
    "DraftView",
    "Event",
    "ExpertsKernel",
    "ForcesTokens",
    "GatedOperation",
    "GrammarBackend",
    "GrammarVocabulary",
    "HasActivate",
    "HasActivated",
    "HasAddNorm",
    "HasExampleParams",
    "HasExampleState",
    "HasExperts",
    "HasFeatures",
    "HasGated",
    "HasGroupedExperts",
    "HasHeads",
    "HasLayerNorm",
    "HasLogprobs",
    "HasMaskedRace",
    "HasOpenGate",
    "HasRace",
    "HasRoute",
    "HasRow",
    "HasSoftCap",
    "HasTakeRows",
    "HasTree",
    "HeadTurn",
    "HeadsKernel",
    "HearsResults",
    "Kernels",
    "KnowsRequests",
    "LatentBackend",
    "LinearKernel",
    "Loader",
    "LogitsProcessor",
    "LogitsRow",
    "LogprobsKernel",
    "MaskedRaceKernel",
    "Matcher",
    "MemoryTag",
    "ModelFamily",
    "MovesKeys",
    "NeedsHidden",
    "NeedsOrder",
    "Platform",
    "PreparesInto",
    "Proposer",
    "ProposerInput",
    "QuantizationMethod",
    "RaceCall",
    "RaceKernel",
    "Recordable",
    "RecordableBackend",
    "Releases",
    "RequestFacts",
    "ResolvesTensors",
    "ResponseFormats",
    "RouteKernel",
    "Runtime",
    "SavedKernel",
    "SavesKernels",
    "StateBackend",
    "SumsInSegments",
    "Trims",
    "TurnsHeads",
    "Uploads",
    "WarmUp",
    "WarmsUp",
    "is_recordable",
    "recordable_steps",
]
