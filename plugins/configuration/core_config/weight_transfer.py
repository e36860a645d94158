"""The settings of weight transfer, from their argument.

Owns: the construction of `WeightTransferConfig`. Never does: open a file. Called by: engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.api.config import WeightTransferConfig
from core_config.stages.settings import underscored


def weight_transfer_config(given: dict[str, Any] | None, problems: list[str]) -> WeightTransferConfig | None:
    """Return the config, None where weights are not replaced over HTTP. A path that is not a directory is a problem."""
    if given is None:
        return None
    keys = underscored(given)
    directory = keys.get("directory")
    if directory is not None:
        path = Path(directory).expanduser()
        if not path.is_dir():
            problems.append(f"--weight-transfer-config.directory {directory}: there is no such directory.")
        keys["directory"] = str(path.resolve())
    return WeightTransferConfig(**keys)
