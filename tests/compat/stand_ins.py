"""Tiny checkpoints of random weights that stand for the models of vLLM's examples, of the kind that each example needs.

Owns: which kind stands for which name, and these checkpoints, made when first asked for. Never does: run anything.
Called by: `tests.compat.examples`.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

CONTEXT: Final = 32_768
"""Tokens that a stand-in takes."""

KINDS: Final[tuple[tuple[str, str], ...]] = (
    (r"sharded-state", "sharded state"),
    (r"lora|text2sql", "adapter"),
    (r"token.?reward|PRM", "token classes"),
    (r"reward|classif|apeach", "classes"),
    (r"\bner\b|gliner|token-class", "token classes"),
    (r"bge-reranker|cross-encoder|ms-marco", "cross-encoder"),
    (r"Qwen3-Reranker", "yes or no"),
    (r"jina-reranker", "vectors"),
    (r"rerank", "one class"),
    (r"jina-embeddings|matryoshka|mxbai|embed", "vectors"),
    (r"e5-|bge-|MiniLM|gte-", "encoder"),
    (r"accelerator|speculator", "speculator"),
    (r"EAGLE3", "eagle3"),
    (r"EAGLE", "eagle"),
    (r"A3B|Mixtral|MoE|gpt-oss", "experts"),
    (r"Qwen2.5-3B-Instruct", "embedded"),
)
"""Patterns of a hub name, in this order, and the kind of its stand-in; a name that fits none is a plain decoder's."""


ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "save_sharded_state": ("--model", "owner/decoder", "--output", "saved"),
    "load_sharded_state": ("--model", "owner/sharded-state"),
}
"""What is written behind scripts that ask for arguments, by part of their names; hub names among them are stood for."""


def kind_of(name: str) -> str:
    """The kind of model that a hub name stands for."""
    for pattern, kind in KINDS:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    return "decoder"


class StandIns:
    """One checkpoint a kind. place: a directory for them."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: dict[str, Path] = {}

    def path(self, name: str) -> str:
        """Where the stand-in of a hub name lies."""
        kind = kind_of(name)
        if kind not in self._made:
            folder = self._place / kind.replace(" ", "-")
            MAKERS[kind](folder, self)
            self._made[kind] = folder
        return str(self._made[kind])


def arguments_of(script: str, instead: Callable[[str], str]) -> list[str]:
    """What is written behind a script's name. instead: the checkpoint in the place of a hub name."""
    for part, words in ARGUMENTS.items():
        if part in script:
            return [instead(word) if word.startswith("owner/") else word for word in words]
    return []


def _decoder(folder: Path, stand_ins: StandIns) -> None:
    from tests.tiny_models import save_checkpoint

    save_checkpoint(folder, max_position_embeddings=CONTEXT)


def _experts(folder: Path, stand_ins: StandIns) -> None:
    from tests.tiny_models import save_checkpoint

    save_checkpoint(folder, "qwen3_moe", max_position_embeddings=CONTEXT)


def _sharded(folder: Path, stand_ins: StandIns) -> None:
    from core.commands.main import main

    if main(["save-sharded", stand_ins.path(""), str(folder)]):
        raise RuntimeError("the stand-in of a sharded state could not be written")


def _adapter(folder: Path, stand_ins: StandIns) -> None:
    """An adapter of the plain decoder."""
    from tests.adapters.drawn import shapes_of, write_adapter

    write_adapter(folder, shapes_of(stand_ins.path("")), rank=8, seed=1)


def _vectors(folder: Path, stand_ins: StandIns) -> None:
    """A decoder that says for which sizes its vectors were trained."""
    _decoder(folder, stand_ins)
    _change(folder, is_matryoshka=True, matryoshka_dimensions=[16, 32, 64])


def _of_classes(base: str, labels: int) -> Callable[[Path, StandIns], None]:
    """base: `sequence` or `token`, what has the classes."""

    def make(folder: Path, stand_ins: StandIns) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

        _decoder(folder, stand_ins)
        config = AutoConfig.from_pretrained(folder, num_labels=labels)
        kind: Any = AutoModelForSequenceClassification if base == "sequence" else AutoModelForTokenClassification
        torch.manual_seed(0)
        kind.from_config(config, dtype=torch.float32).save_pretrained(folder)

    return make


def _of_family(model_type: str, kind: str, **changes: Any) -> Callable[[Path, StandIns], None]:
    """kind: the class of transformers that makes it, without `AutoModel`."""

    def make(folder: Path, stand_ins: StandIns) -> None:
        import torch
        import transformers

        from tests.tiny_models import SHAPE, byte_tokenizer

        shape = {**SHAPE, "max_position_embeddings": 4096, **changes}
        if model_type == "bert":
            del shape["num_key_value_heads"]  # it has as many as heads, and no such key
        config = transformers.AutoConfig.for_model(model_type, **shape)
        torch.manual_seed(0)
        made = getattr(transformers, f"AutoModel{kind}").from_config(config, dtype=torch.float32)
        made.save_pretrained(folder)
        byte_tokenizer().save(str(folder / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "</s>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))

    return make


def _yes_or_no(folder: Path, stand_ins: StandIns) -> None:
    """A decoder whose tokenizer has tokens for both words."""
    _of_family("qwen3", "ForCausalLM", head_dim=16, vocab_size=263)(folder, stand_ins)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["vocab"] |= {"no": 260, "ye": 261, "yes": 262}
    tokenizer["model"]["merges"] = [["n", "o"], ["y", "e"], ["ye", "s"]]
    file.write_text(json.dumps(tokenizer))


def _embedded(folder: Path, stand_ins: StandIns) -> None:
    """The embedded model, whose tokens are words: for prompts that must fit a short context."""
    from core_config.locating.default_model import default_model

    folder.symlink_to(default_model())


def _speculator(folder: Path, stand_ins: StandIns) -> None:
    from tests.speculative.checkpoints import save_speculator

    save_speculator(folder)


def _eagle(folder: Path, stand_ins: StandIns) -> None:
    from tests.speculative.checkpoints import save_eagle

    save_eagle(folder, _target(stand_ins))


def _eagle3(folder: Path, stand_ins: StandIns) -> None:
    from tests.speculative.checkpoints import save_eagle3

    save_eagle3(folder, _target(stand_ins))


def _target(stand_ins: StandIns) -> Any:
    """The plain decoder, which drafts are for."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(stand_ins.path(""))


def _change(folder: Path, **keys: Any) -> None:
    """Keys of a configuration."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | keys))


MAKERS: Final[dict[str, Callable[[Path, StandIns], None]]] = {
    "decoder": _decoder,
    "experts": _experts,
    "sharded state": _sharded,
    "adapter": _adapter,
    "vectors": _vectors,
    "classes": _of_classes("sequence", 3),
    "one class": _of_classes("sequence", 1),
    "token classes": _of_classes("token", 2),
    "cross-encoder": _of_family("bert", "ForSequenceClassification", num_labels=1),
    "encoder": _of_family("bert", ""),
    "yes or no": _yes_or_no,
    "embedded": _embedded,
    "speculator": _speculator,
    "eagle": _eagle,
    "eagle3": _eagle3,
}
