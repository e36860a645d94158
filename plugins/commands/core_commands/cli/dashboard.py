"""`core dashboard`: print the Grafana dashboard.

Owns: the command. Never does: make the dashboard. Called by: the frame.
"""

from __future__ import annotations

import json

from core.api.errors import UserError


def dashboard(words: list[str]) -> int:
    """Print the dashboard; returns the exit code."""
    from core.args.show import show

    usage = "core dashboard [--vllm-metrics] > core.json"
    if words in (["-h"], ["--help"]):
        show(usage, "Print a Grafana dashboard for the server's metrics, to be imported there.", [])
        return 0
    if words not in ([], ["--vllm-metrics"]):
        raise UserError(f"core dashboard: unknown words {' '.join(words)}; expected: {usage}.")
    from core_observers.dashboard import dashboard as made
    from core_observers.metrics import PREFIX
    from core_observers.vllm_names import THEIRS

    print(json.dumps(made(THEIRS if words else PREFIX), indent=2))
    return 0
