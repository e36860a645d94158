"""Words that mean the same in every argument.

Owns: yes and no, and values that read as JSON. Never does: know an argument. Called by: conversion, the table of foreign names.
"""

from __future__ import annotations

import json
from typing import Any

TRUE = frozenset({"true", "yes", "on", "1"})
FALSE = frozenset({"false", "no", "off", "0"})


def loose(text: str) -> Any:
    """The value of a dotted key: JSON when it reads as JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
