"""`core dashboard`: print the dashboard for Grafana, or for Perses.

Owns: the command. Never does: make the dashboard. Called by: the frame.
"""

from __future__ import annotations

import json

from core.api.errors import UserError

USAGE = "core dashboard [--perses] [--vllm-metrics] > core.json"


def dashboard(words: list[str]) -> int:
    """Print the dashboard; returns the exit code. Raises UserError for words that it does not know."""
    from core.args.show import show

    if words in (["-h"], ["--help"]):
        show(USAGE, "Print a Grafana dashboard for the server's metrics, or one for Perses, to be imported there.", [])
        return 0
    unknown = [word for word in words if word not in ("--perses", "--vllm-metrics")]
    if unknown:
        raise UserError(f"core dashboard: unknown words {' '.join(unknown)}; expected: {USAGE}.")
    from core_observers.dashboard import dashboard as grafana
    from core_observers.metrics import PREFIX
    from core_observers.perses import perses_dashboard
    from core_observers.vllm_names import THEIRS

    made = perses_dashboard if "--perses" in words else grafana
    print(json.dumps(made(THEIRS if "--vllm-metrics" in words else PREFIX), indent=2))
    return 0
