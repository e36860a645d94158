"""What an answer took of the machine, as its client is told. Owns: `EnergyUse`. Called by: outputs, writers of answers."""

from __future__ import annotations

import msgspec


class EnergyUse(msgspec.Struct):
    """processor_seconds: of all threads of the engine process. joules: None where the machine has no meter that can be read."""

    processor_seconds: float
    joules: float | None
