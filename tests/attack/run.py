"""Attacks a server of this checkout for some minutes and reports what it found: `python -m tests.attack.run`.

Exit code: 0 when everything held, 1 when something did not, 2 for wrong arguments. Servers that are attacked are started
here and listen on 127.0.0.1; `--url` names another one on this machine, for the phases that need no process of their own.
"""

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.attack import (
    phase_adapters,
    phase_connections,
    phase_disks,
    phase_known,
    phase_load,
    phase_outputs,
    phase_pictures,
    phase_rows,
    phase_schema,
    phase_sessions,
    phase_signals,
    phase_stalls,
)
from tests.attack.arena import Arena
from tests.attack.metronome import ticking
from tests.attack.report import write
from tests.attack.results import Clock, Phase
from tests.attack.row import KEY
from tests.attack.send import Target

Run = Callable[[Arena, Phase, float], None]

# phase: its title, its part of the time, whether it can attack a server that it did not start
PHASES: dict[str, tuple[str, Run, float, bool]] = {
    "rows": ("Every hostile request, one by one", phase_rows.run, 0.2, True),
    "schema": ("The OpenAPI document, by schemathesis", phase_schema.run, 0.12, True),
    "stalls": ("Stalls of other clients", phase_stalls.run, 0.1, True),
    "connections": ("Connections that are silent, slow, or gone", phase_connections.run, 0.2, False),
    "signals": ("Signals", phase_signals.run, 0.2, False),
    "outputs": ("Full and closed outputs, small limits", phase_outputs.run, 0.08, False),
    "disks": ("KV tiers on disks that misbehave", phase_disks.run, 0.1, False),
    "adapters": ("Adapters: names, paths, files, and loads at any time", phase_adapters.run, 0.15, False),
    "sessions": ("Sessions of other keys, and 10,000 pins", phase_sessions.run, 0.1, False),
    "pictures": ("Large pictures, beside other clients", phase_pictures.run, 0.1, False),
    "known": ("Receipts, quotes, records, batches and starts", phase_known.run, 0.15, False),
    "load": ("Mixed load", phase_load.run, 0.15, True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, attack, report."""
    options = parse(arguments)
    names = [name for name in PHASES if name in (options.only or PHASES)]
    given = None if options.url is None else target_of(options.url, options.key)
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as home, ticking() as metronome:
        arena = Arena(Path(home), options.seed, given, metronome=metronome)
        phases = attack(arena, names, options.minutes * 60)
    failed = sum(len(phase.failed) for phase in phases)
    write(options.report, phases, seed=options.seed, seconds=time.monotonic() - arena.begin)
    arena.say("report", f"the machine stood still for {metronome.longest() * 1000:.0f} ms at most")
    arena.say("report", f"{options.report} and {options.report.with_suffix('.html')}: {failed} failed")
    return 1 if failed else 0


def attack(arena: Arena, names: Sequence[str], seconds: float) -> list[Phase]:
    """Run phases one after the other; what one leaves of its time goes to the later ones."""
    phases = []
    clock = Clock(seconds)
    parts = {name: PHASES[name][2] for name in names}
    for name in names:
        title, run, part, anywhere = PHASES[name]
        share = clock.left * part / sum(parts.values())
        del parts[name]
        if arena.given is not None and not anywhere:
            arena.say(name, "left out: it needs a server of its own")
            continue
        arena.say(name, f"begins, {share:.0f} s")
        own, phase = Clock(share), Phase(name, title)
        try:
            run(arena, phase, share)
        except Exception as error:
            traceback.print_exc()
            phase.check("the phase itself", False, f"{type(error).__name__}: {error}"[:500], "no exception")
        arena.check_callbacks(phase)
        phase.seconds = own.elapsed
        phases.append(phase)
        for check in phase.failed:
            arena.say(name, f"FAILED {check.name}: {check.value}, wanted {check.target}. {check.note}"[:300])
        arena.say(name, f"{len(phase.checks) - len(phase.failed)} of {len(phase.checks)} held")
    return phases


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all phases together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(PHASES), help="a phase; may be given several times")
    parser.add_argument("--url", help="http://127.0.0.1:PORT of a server that runs already")
    parser.add_argument("--key", default=KEY, help="its API key")
    parser.add_argument("--report", type=Path, default=Path("attack-report.md"), help="Markdown; a page lies beside it")
    options = parser.parse_args(arguments)
    if options.url is not None:
        try:
            target_of(options.url, options.key)
        except ValueError as error:
            parser.error(f"--url {options.url}: {error}")
    return options


def target_of(url: str, key: str) -> Target:
    """The server at `url`. Raises ValueError unless it is on this machine."""
    parts = urlsplit(url)
    if not parts.hostname or not parts.port:
        raise ValueError("expected http://127.0.0.1:PORT")
    return Target(parts.hostname, parts.port, key)


if __name__ == "__main__":
    sys.exit(main())
