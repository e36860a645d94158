"""Classes that are tokens: models whose language model head scores how well a document fits a query.

Owns: the keys of a configuration that request it, and the translation of texts to tokens. Never does: read weights.
Called by: `core_config.pooled.pooling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from core.api.errors import UserError
from core_config.pooled.rerankers import Reranker
from core_config.stages.checkpoint import Checkpoint, find_tokenizer
from core_config.stages.settings import Settings
from core_runtime.models.families.class_heads import FROM_TOKENS
from core_tokens.files import FILE_MODES

METHODS: Final[Mapping[str, bool]] = {"from_2_way_softmax": True, "no_post_processing": False}
"""Values of the key `method` → whether the one class is the contrast of two tokens: how much likelier the second is
than the first.
"""


class TokenClasses(NamedTuple):
    """Classes computed by rows of the language model head.

    token_ids: one a class, or two, of which the second is the positive one.
    contrast: whether two tokens make one class.
    labels: names of the classes.
    """

    token_ids: tuple[int, ...]
    contrast: bool
    labels: tuple[str, ...]


def declared_classes(settings: Settings, checkpoint: Checkpoint, known: Reranker | None) -> TokenClasses | None:
    """Return the classes that the configuration or the model's name implies, None where there are none. Raises
    UserError.
    """
    hf_config = checkpoint.manifest.config
    texts = hf_config.get(FROM_TOKENS)
    method = hf_config.get("method")
    if texts is None and known is not None:
        texts = list(known.tokens)
    if texts is None:
        return None
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise UserError(
            f"{FROM_TOKENS} is {texts!r}; expected a list of texts of one token each, such as ['no', 'yes']."
        )
    if method in METHODS:
        contrast = METHODS[str(method)]
    elif known is not None:
        contrast = True
    else:
        raise UserError(
            f"{FROM_TOKENS} is {texts!r} and method {method!r}; expected a method of {' and '.join(METHODS)}, beside it in "
            "--hf-overrides."
        )
    if contrast and len(texts) != 2:
        raise UserError(f"{FROM_TOKENS} is {texts!r}; expected two texts, the unwanted one first.")
    ids = _ids(settings, checkpoint, texts)
    return TokenClasses(ids, contrast, (texts[1],) if contrast else tuple(texts))


def _ids(settings: Settings, checkpoint: Checkpoint, texts: list[str]) -> tuple[int, ...]:
    """Return each text's token. Raises UserError for a text that is not one token."""
    mode = settings["tokenizer_mode"]
    if mode not in FILE_MODES:
        raise UserError(
            f"{FROM_TOKENS} is {texts!r}, and --tokenizer-mode {mode} is a plugin, which is not loaded for a configuration; "
            f"expected one of {', '.join(FILE_MODES)}."
        )
    from core_tokens.tokenizer import Tokenizer  # imported here because few models need it before the engine starts

    tokenizer = Tokenizer.from_source(checkpoint.manifest.tokenizer, find_tokenizer(settings), mode)
    found = []
    for text in texts:
        token = tokenizer.backend.token_to_id(text)
        ids = tokenizer.encode(text, add_special_tokens=False) if token is None else [token]
        if len(ids) != 1:
            raise UserError(f"{FROM_TOKENS}: {text!r} is {len(ids)} tokens of this model; expected texts of one token.")
        found.append(ids[0])
    return tuple(found)
