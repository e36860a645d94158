"""The arguments of the `fair` policy. Owns: declarations only. Called by: its manifest, the policy."""

from __future__ import annotations

import msgspec


class FairArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `fair`. shared_limits: directory in which engines tell each other the service of users; see the flag."""

    shared_limits: str | None = None
