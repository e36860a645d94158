from dataclasses import dataclass


@dataclass(frozen=True)
class InFlexData:
    """Scales of flexpoint; there are none here."""
