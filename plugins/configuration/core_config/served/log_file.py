"""The file that configures logging.

Owns: reading it. Never does: apply it (`core.logging_setup` does). Called by: the builders of the configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.api.errors import ConfigError
from core.logging_setup import LOGGERS

MAX_BYTES = 1 << 20


def log_config(path: str | None, level: str | None = None) -> dict[str, Any]:
    """Return the argument of `logging.config.dictConfig`; empty without a file or a level. Raises ConfigError.

    level: of our own loggers; a file has levels of its own.
    """
    if path is None:
        # Incremental: handlers and formats stay those of our own set-up.
        loggers = {name: {"level": (level or "").upper()} for name in LOGGERS}
        return {} if level is None else {"version": 1, "incremental": True, "loggers": loggers}
    import yaml

    try:
        with Path(path).expanduser().open("rb") as file:
            text = file.read(MAX_BYTES)
        document = yaml.safe_load(text.decode("utf-8"))  # JSON is YAML too
    except OSError as error:
        raise ConfigError([f"--log-config-file {path}: cannot be read: {error.strerror}."]) from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError([f"--log-config-file {path}: is neither YAML nor JSON: {error}."]) from None
    if not isinstance(document, dict) or document.get("version") != 1:
        raise ConfigError(
            [f"--log-config-file {path}: expected a mapping for logging.config.dictConfig, with 'version: 1'."]
        )
    return {"disable_existing_loggers": False, **document}
