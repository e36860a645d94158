"""Structs whose unknown keywords are told with the nearest known one.

Owns: `HintedMeta`. Never does: check a value. Called by: the parameters that people write by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import StructMeta

from core.api.errors import nearest


class HintedMeta(StructMeta):
    """Calls of the class raise TypeError with a way out for a keyword that there is not.

    A class may say in `elsewhere` what to write for names that other engines have. Decoding a message asks nothing of this.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {}

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        """Make one."""
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
