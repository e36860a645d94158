"""The kinds of calls of a step that can be recorded.

Owns: their names, and which of them a model has. Never does: record.
Called by: the builder of a step runner (makes recorders), the forward pass (names its calls).
"""

from __future__ import annotations

from typing import Final

from core.api.config import CompilationConfig
from core_runtime.contracts import Runtime
from core_runtime.executor.recorder import Recorder
from core_runtime.executor.steps.buffers import StepBuffers
from core_runtime.models.decoder import Decoder
from core_runtime.models.fallback.model import ModuleModel
from core_runtime.sampling import DRAWS, sampling_kind
from core_runtime.specs.graph_sizes import LARGEST

DECODE: Final = "decode"
VERIFY: Final = "verify"
MIXED: Final = "mixed"
HEAD: Final = "head"
ADAPTED: Final = {kind: f"{kind} with adapters" for kind in (DECODE, VERIFY, MIXED)}
"""Kinds of steps with adapters: their recordings also hold the calls of the adapters' tables."""


def recorder_of(
    model: Decoder | ModuleModel,
    runtime: Runtime,
    buffers: StepBuffers,
    *,
    padding: bool,
    eager: bool,
    compilation: CompilationConfig,
    rows_each: int = 1,
    adapters: bool = False,
) -> Recorder:
    """Make the recorder of a model, with the kinds of calls that can be recorded.

    padding: whether the model's attention backends accept steps with padded rows and sequences.
    eager: record nothing.
    rows_each: rows of a sequence whose drafts are verified; 1: there are no drafts.
    adapters: whether there are adapters whose calls can be recorded.
    """
    if eager:
        return Recorder()
    if not model.capturable:
        recorder = Recorder(runtime)
        recorder.report("some kernels of this model cannot be")
        return recorder
    max_num_seqs = len(buffers.seq_lens.array)
    max_num_tokens = len(buffers.token_ids.array)
    recorder = Recorder(runtime, compilation.sizes)
    recorder.add(HEAD, model.max_logits)
    for start in range(0, max_num_seqs, model.max_logits):
        # A kind per range of rows: a recording writes to fixed places, and each range has its own places for tokens.
        kind = sampling_kind(start)
        recorder.add(kind, model.max_logits, padded=False)
    if buffers.sampled is not None:
        for kind in DRAWS:
            recorder.add(kind, min(model.max_logits, len(buffers.sampled.out)))
    named = [{kind: kind for kind in ADAPTED}]
    if adapters:
        named.append(ADAPTED)
    for names in named:
        if model.capture != "never":
            recorder.add(names[DECODE], max_num_seqs, padded=padding)
            if rows_each > 1:
                recorder.add_multiples(names[VERIFY], names[DECODE], rows_each, min(max_num_tokens, LARGEST))
        if model.capture == "any" and compilation.mixed:
            # The same number of rows can belong to different numbers of sequences, so without padding only a recording
            # that serves every size is of use.
            recorder.add(names[MIXED], max_num_tokens, every_size=not padding)
    recorder.report("their attention cannot be", DECODE, VERIFY, MIXED)
    return recorder
