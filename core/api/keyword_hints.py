"""Structs that answer an unknown keyword with the nearest known one.

Owns: `HintedMeta`. Never does: check a value. Called by: the classes of parameters that people write by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import StructMeta

from core.api.errors import nearest


class HintedMeta(StructMeta):
    """Metaclass of Structs: a call with an unknown keyword raises TypeError with a way out.

    A class may say in `elsewhere` what to write for names that other engines have. Decoding a message does not use this.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {}

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        """Create an instance. Raises TypeError, with a hint, for a keyword that is not a field."""
        try:
            return super().__call__(*args, **keywords)
        except TypeError:
            fields: tuple[str, ...] = cls.__struct_fields__
            unknown = [name for name in keywords if name not in fields]
            if not unknown:
                raise
            name = unknown[0]
            way_out = cls.elsewhere.get(name)
            hint = f" {way_out}" if way_out else nearest(name, fields)
            raise TypeError(f"{cls.__name__} has no parameter {name!r}.{hint}") from None
