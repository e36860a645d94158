"""Words with the same meaning in every argument.

Owns: the words for true and false, and values that parse as JSON. Never does: know an argument. Called by: conversion, the
table of foreign names.
"""

from __future__ import annotations

import json
from typing import Any

TRUE = frozenset({"true", "yes", "on", "1"})
FALSE = frozenset({"false", "no", "off", "0"})


def loose(text: str) -> Any:
    """Parse the value of a dotted key as JSON; text that is not JSON is returned as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
