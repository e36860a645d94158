"""Tokenizers of the real models: ours, and transformers' reading of the same files (kept in tests/.cache)."""

import os
import shutil
from functools import cache
from pathlib import Path

import tokenizers
import transformers
from tokenizers.pre_tokenizers import Digits, Sequence
from transformers import AutoTokenizer

from core_loaders.gguf.loader import GGUFLoader
from core_tokens.tokenizer import Tokenizer
from tests.real_models import CACHE, gemma3_path, smollm2_path

PATHS = {"smollm2": smollm2_path, "gemma3": gemma3_path}


@cache
def ours(name: str) -> Tokenizer:
    return Tokenizer.from_source(GGUFLoader().resolve(str(PATHS[name]())).tokenizer)


def reference_directory(name: str) -> Path:
    """tokenizer.json as transformers converts it; its reading of a large vocabulary takes many seconds."""
    path = PATHS[name]()
    target = CACHE / f"{path.stem}.tokenizer-{transformers.__version__}"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(partial)
        shutil.move(partial, target)
    return target


@cache
def reference(name: str) -> tokenizers.Tokenizer:
    found = tokenizers.Tokenizer.from_file(str(reference_directory(name) / "tokenizer.json"))
    if name == "smollm2":
        # The model's published tokenizer splits off every digit first; transformers' conversion from GGUF leaves that out,
        # which shows with digits outside of ASCII.
        found.pre_tokenizer = Sequence([Digits(individual_digits=True), found.pre_tokenizer])
    return found
