"""Models and tokenizers with names on a hub, downloaded as the settings say.

Owns: the translation of settings to a download. Never does: transfer (`core_config.locating.hub` does). Imported only for a
name on a hub, since most starts read a local file. Called by: checkpoint.
"""

from __future__ import annotations

from core_config.locating.hub import Hub
from core_config.locating.hub_files import TOKENIZER, Wanted
from core_config.locating.reference import Reference
from core_config.stages.settings import Settings


def fetched_model(settings: Settings, ref: str, reference: Reference) -> str:
    """Return the local directory or file of a model. ref: reference as the user wrote it. Raises UserError."""
    wanted = Wanted(
        ref,
        settings["load_format"],
        reference.quant,
        reference.file,
        settings["ignore_patterns"],
        code=settings["trust_remote_code"],
    )
    return str(_hub(settings).download(reference.name, settings["revision"], wanted))


def fetched_tokenizer(settings: Settings, ref: str) -> str:
    """Return the local directory of a tokenizer. Raises UserError."""
    wanted = Wanted(ref, ignored=settings["ignore_patterns"], small=TOKENIZER, weights=False)
    return str(_hub(settings).download(ref, settings["tokenizer_revision"], wanted))


def fetched_config(settings: Settings, ref: str) -> str:
    """Return the local directory of another model's configuration. Raises UserError."""
    wanted = Wanted(ref, ignored=settings["ignore_patterns"], small=("config.json",), weights=False)
    return str(_hub(settings).download(ref, None, wanted))


def _hub(settings: Settings) -> Hub:
    return Hub(
        settings["hf_endpoint"], settings["hf_token"], settings["download_dir"], progress=settings["use_tqdm_on_load"]
    )
