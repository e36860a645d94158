"""The shape of a model of transformers, computed in a helper process. Torch-free.

Owns: the question and its answer. Never does: import torch or transformers in the calling process; use the network.
Called by: the configuration; the helper process runs this module.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from core.api.errors import UserError
from core_runtime.models.fallback.spec_cache import KeptSpecs, usual_folder
from core_runtime.specs.module_spec import ModuleSpec
from core_supervision.helpers.child import run

PATIENCE_S: Final = 600.0
NOT_ASKED: Final = "transformers could not be asked about this model ({})."


class Question(msgspec.Struct, frozen=True):
    """The input of the helper process.

    hf_config: the model's configuration.
    names: names of the checkpoint's tensors.
    directory: the checkpoint's directory when its own code may be run.
    """

    hf_config: dict[str, Any]
    names: list[str]
    directory: str | None


class Answer(msgspec.Struct, frozen=True):
    """The output of the helper process: a shape, or a sentence about what is wrong."""

    spec: ModuleSpec | None = None
    refusal: str = ""


def builds(hf_config: Mapping[str, Any], trust_remote_code: bool) -> bool:
    """Whether transformers may have a causal language model for this configuration.

    Searches the text of transformers' table. This costs milliseconds; importing it costs seconds.
    """
    if trust_remote_code and "auto_map" in hf_config:
        return True
    package = importlib.util.find_spec("transformers")
    if package is None or package.origin is None:
        return False
    table = Path(package.origin).parent / "models" / "auto" / "modeling_auto.py"
    try:
        text = table.read_text(encoding="utf-8")
    except OSError:
        return False
    _, _, after = text.partition("\nMODEL_FOR_CAUSAL_LM_MAPPING_NAMES =")
    rows, _, _ = after.partition("\n)")
    return f'("{hf_config.get("model_type")}",' in rows


def describe(
    hf_config: Mapping[str, Any], names: Sequence[str], directory: str | None, kept: KeptSpecs | None = None
) -> ModuleSpec:
    """Return the shape of a model.

    names, directory: see `Question`.
    kept: cache of answers to earlier questions, which start no process; None: the cache in the usual folder.
    Raises UserError with the reason why the model cannot be served.
    """
    question = Question(dict(hf_config), list(names), directory)
    text = msgspec.json.encode(question, order="deterministic")
    if directory is not None:  # not cached: the checkpoint's own code, which answers, may change at any time
        return _ask(text)
    kept = kept or KeptSpecs(usual_folder())
    found = kept.find(text)
    if found is None:
        found = _ask(text)
        kept.keep(text, found)
    return found


def _ask(question: bytes) -> ModuleSpec:
    """Run the helper process and return its answer. Raises UserError."""
    from core_supervision.helpers.blocking import ask_once
    from core_supervision.helpers.lane import Lane
    from core_supervision.helpers.link import HelperEnded

    lane = Lane(
        "core_runtime.models.fallback.description", "builds a model of transformers", PATIENCE_S, max_attempts=1
    )
    try:
        answer = msgspec.msgpack.decode(ask_once(lane, question), type=Answer)
    except HelperEnded as ending:
        if ending.timed_out:
            raise UserError(f"transformers did not build this model's modules within {PATIENCE_S:.0f} s.") from None
        raise UserError(NOT_ASKED.format(ending)) from None
    if answer.spec is None:
        raise UserError(answer.refusal)
    return answer.spec


def answer_to(payload: memoryview) -> tuple[Answer, bool]:
    """Answer a question, in the helper process."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    question = msgspec.json.decode(payload, type=Question)
    import torch

    from core_runtime.models.fallback.shape import shaped_model

    try:
        return Answer(shaped_model(question.hf_config, question.names, torch.float32, question.directory).spec), True
    except UserError as refusal:
        return Answer(refusal=str(refusal)), True
    except Exception as error:  # a checkpoint's own code may raise anything
        return Answer(refusal=NOT_ASKED.format(f"{type(error).__name__}: {error}")), True


if __name__ == "__main__":
    sys.exit(run(lambda parent: parent.serve(answer_to), 0))
