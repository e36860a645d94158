"""The user's settings for pooling: the keys of `--pooler-config`.

Owns: their reading, and their effect on a model's own pooling. Never does: read a checkpoint.
Called by: `core_config.pooled.pooling` and `core_config.pooled.class_pooling`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from core.api.errors import UserError, nearest
from core.api.pooling import PoolingConfig, PoolingKind
from core_config.pooled.sentence_files import KINDS
from core_config.stages.settings import Settings, underscored


def requested_kind(settings: Settings) -> PoolingKind | None:
    """Return the pooling that the user requests, or None. Raises UserError for two of them."""
    keys = _keys(settings)
    names = {str(keys[name]).lower() for name in ("pooling_type", "seq_pooling_type") if keys.get(name)}
    if len(names) > 1:
        raise UserError("--pooler-config: pooling_type and seq_pooling_type differ; leave one of them out.")
    return KINDS[names.pop()] if names else None


def requested_activation(settings: Settings) -> bool | None:
    """Return whether the user requests vectors of length 1, or probabilities; None: the user does not say."""
    keys = _keys(settings)
    asked: bool | None = None
    for name in ("normalize", "use_activation"):
        if keys.get(name) is not None:
            asked = bool(keys[name])
    return asked


def with_keys(settings: Settings, config: PoolingConfig) -> PoolingConfig:
    """Return the config with the task and the numbers that the user requests. Raises UserError for a task that the
    model does not serve.
    """
    keys = _keys(settings)
    changes: dict[str, Any] = {}
    task = keys.get("task")
    if task is not None:
        if task not in config.tasks:
            served = ", ".join(config.tasks)
            raise UserError(
                f"--pooler-config.task {task}: this model serves {served}.{nearest(str(task), config.tasks)} "
                "--convert chooses between vectors and classes."
            )
        changes["usual_task"] = task
    changes |= _dimensions(keys, config)
    changes |= _calibration(keys, config)
    changes |= _steps(keys, config)
    changes |= _pieces(keys, config)
    return msgspec.structs.replace(config, **changes)


def _dimensions(keys: Mapping[str, Any], config: PoolingConfig) -> dict[str, Any]:
    size = keys.get("dimensions")
    if size is None:
        return {}
    if config.classifies:
        raise UserError("--pooler-config.dimensions is of vectors, and this model gives classes; leave it out.")
    served = config.dimensions
    if size > config.size or (served and size not in served):
        sizes = ", ".join(map(str, served)) or f"1 to {config.size}"
        raise UserError(f"--pooler-config.dimensions {size}: this model's vectors may have {sizes} numbers.")
    return {"usual_dimensions": size}


def _calibration(keys: Mapping[str, Any], config: PoolingConfig) -> dict[str, Any]:
    """Return the calibration of class scores; empty without one."""
    mean = keys.get("logit_mean")
    sigma = keys.get("logit_sigma")
    if mean is None and sigma is None:
        return {}
    if not config.classifies:
        raise UserError("--pooler-config.logit_mean and .logit_sigma are of classes, and this model gives vectors.")
    found = {"logit_mean": 0.0 if mean is None else float(mean), "logit_sigma": 1.0 if sigma is None else float(sigma)}
    if not all(math.isfinite(number) for number in found.values()) or found["logit_sigma"] == 0.0:
        raise UserError(
            f"--pooler-config: logit_mean is {mean} and logit_sigma {sigma}; expected finite numbers, the latter not 0."
        )
    return found


def _steps(keys: Mapping[str, Any], config: PoolingConfig) -> dict[str, Any]:
    """Return which classes of tokens are given; empty: all of all tokens. Raises UserError for a choice that is impossible."""
    tag, columns = keys.get("step_tag_id"), keys.get("returned_token_ids")
    by_step = str(keys.get("tok_pooling_type") or "").upper() == "STEP"
    if by_step and tag is None:
        raise UserError("--pooler-config.tok_pooling_type STEP needs step_tag_id, the token behind each step.")
    if tag is None and columns is None:
        return {}
    if "token_classify" not in config.tasks:
        raise UserError(
            "--pooler-config.step_tag_id and .returned_token_ids are of classes of tokens, which this model does not give; "
            "leave them out."
        )
    if columns is not None and (not columns or not all(0 <= one < config.size for one in columns)):
        raise UserError(
            f"--pooler-config.returned_token_ids {list(columns)}: expected numbers of this model's classes, 0 to "
            f"{config.size - 1}."
        )
    return {"step_tag_id": tag, "returned_token_ids": tuple(columns or ())}


def _pieces(keys: Mapping[str, Any], config: PoolingConfig) -> dict[str, Any]:
    """Return how long a text may be that is pooled in pieces; empty without any. Raises UserError."""
    longest = keys.get("max_embed_len")
    if bool(keys.get("enable_chunked_processing")) != (longest is not None):
        raise UserError(
            "--pooler-config.enable_chunked_processing and .max_embed_len, the tokens of the longest text, go together; give "
            "both or none."
        )
    if longest is None:
        return {}
    if config.classifies or not {"all", "rest"}.isdisjoint(config.kinds):
        raise UserError(
            "--pooler-config.enable_chunked_processing is of one vector for each text; leave it out for this model."
        )
    return {"max_embed_len": longest}


def _keys(settings: Settings) -> dict[str, Any]:
    return underscored(settings.mapping("pooler_config"))
