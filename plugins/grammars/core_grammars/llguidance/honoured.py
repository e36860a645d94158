"""The path of the table of keywords that llguidance honours.

Owns: the path. Never does: read it (`core_grammars.honoured` does). Called by: the manifest, the backend.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).with_name("honoured.toml")
