"""Configurations as published checkpoints have them, by the checkpoints' names: `published.json`.

They have every key, those of vision only a few. Numbers of tokens, and the factors of longrope, are not all theirs.
"""

import json
from pathlib import Path
from typing import Any

PUBLISHED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())
