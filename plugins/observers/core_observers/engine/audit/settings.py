"""Settings of the live audit. Owns: `AuditSettings`. Called by: the audit, the configuration (as plain values)."""

from __future__ import annotations

import msgspec


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """share: of the steps, of which one row is audited. budget: most part of the engine's step time that audits may take.
    dump: directory for both sides of a mismatch; None: they are not kept. dump_ids: whether token ids are among them.
    """

    share: float
    budget: float = 0.01
    dump: str | None = None
    dump_ids: bool = False
