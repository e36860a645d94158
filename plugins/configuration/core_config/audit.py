"""The settings of the live audit, from the arguments.

Owns: `audit_settings`, and why engines that compute in other ways are not audited. Never does: audit. Called by: the
construction of the configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

NEEDS = {
    "async_scheduling": "it plans steps before the tokens of the previous one are known; give --no-async-scheduling",
    "speculative_config": "rows with drafts are not computed again alone",
    "tensor_parallel_size": "audits of several ranks have not been tried",
    "pipeline_parallel_size": "audits of several ranks have not been tried",
}
"""Why an argument excludes audits."""


class Settings(Protocol):
    """Arguments by name."""

    def __getitem__(self, name: str) -> Any: ...


def audit_settings(settings: Settings, problems: list[str]) -> dict[str, Any]:
    """Return the settings of the audit as plain values; empty: nothing is audited. Adds sentences to `problems`."""
    share, folder = settings["audit_share"], settings["audit_dump"]
    if not share:
        if folder is not None:
            problems.append("--audit-dump: has no meaning without audits; give --audit-share, or leave it out.")
        return {}
    for name, why in NEEDS.items():
        value = settings[name]
        if (value and value != 1) or value is True:
            problems.append(
                f"--audit-share: cannot be used with --{name.replace('_', '-')}: {why}, or leave one of them out."
            )
    return {
        "share": share,
        "budget": settings["audit_budget"] / 100,
        "dump": None if folder is None else str(Path(folder).expanduser().absolute()),
        "dump_ids": settings["audit_dump_ids"],
    }
