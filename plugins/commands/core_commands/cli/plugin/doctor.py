"""`core plugins doctor [MODEL] [ARGUMENTS]`: which changed plugin changed the answers, or the pace.

Owns: the command's options, the choice of the earlier run, the report, and the entry in the quarantine. Never does: start
an engine or compare (`core_commands.doctor` does). Called by: the frame. Exit codes: 0 if nothing differs, 1 if something
does, 2 if it cannot be tried.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from core.api.errors import ConfigError, UserError
from core.args.arg import Arg
from core.commands.printable import safe
from core.commands.tables import print_json
from core.commands.words import take_help
from core_commands.cli.options import parse_engine_arguments, show_engine_help
from core_commands.cli.own_options import own_flags, take_options

if TYPE_CHECKING:
    from core.api.config import EngineConfig
    from core_commands.doctor.diagnosis import Diagnosis, Finding, Suspect
    from core_observers.runs.book import RunBook
    from core_observers.runs.run import Run

USAGE = "core plugins doctor [MODEL] --state-canary DIR [ARGUMENTS] [--since RUN] [--no-pace] [--json]"
SUMMARY = (
    "Find the changed plugin that changed the answers, or the pace, since an earlier start: changed plugins are bypassed by "
    "halves until the results return. Options: --since RUN, --runs (list them), --no-pace, --no-quarantine, --json."
)


class DoctorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of doctor."""

    since: Annotated[
        int | None,
        Arg("Number of the run to compare with. Unset: the newest one with other plugins.", metavar="RUN", ge=1),
    ] = None
    runs: Annotated[bool, Arg("List the runs, and start nothing.")] = False
    pace: Annotated[bool, Arg("Measure time too, with two engines at once.")] = True
    quarantine: Annotated[bool, Arg("List a culprit for --quarantine-plugins.")] = True
    json: Annotated[bool, Arg("The report as JSON.")] = False


def doctor(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    wanted = take_help(words)
    if wanted is not None:
        show_engine_help(USAGE, SUMMARY, wanted)
        return 0
    options = take_options(DoctorOptions, words)
    parsed = parse_engine_arguments(words, own_flags(DoctorOptions))
    if parsed.problems:
        raise ConfigError(parsed.problems)
    from core_config.resolve import resolve
    from core_observers.runs.book import RunBook
    from core_observers.runs.run import runs_key

    values = dict(parsed.values) | {"quarantine_plugins": False}
    config = resolve(values, context="explain").engine
    if config.state_canary is None:
        raise UserError("--state-canary DIR is missing: the directory in which the starts of this engine are kept.")
    if config.data_parallel_size > 1:
        raise UserError(
            "--data-parallel-size: one engine is tried; leave it out, all of a group have the same plugins."
        )
    book = RunBook(Path(config.state_canary), runs_key(config))
    runs = book.runs()
    if not runs:
        raise UserError(
            f"{book.path}: no start of this model with these arguments is kept there; give the arguments of the server, and "
            "start it with --state-canary before plugins change."
        )
    if options.runs:
        _print_runs(runs, as_json=options.json)
        return 0
    plain = {name: getattr(value, "value", value) for name, value in values.items()}
    return _examine(options, config, plain, book, runs)


def _examine(
    options: DoctorOptions, config: "EngineConfig", values: dict[str, Any], book: "RunBook", runs: "Sequence[Run]"
) -> int:
    """Compare the present plugins with a run's, report, and return the exit code."""
    from core_commands.doctor.diagnosis import Diagnosis, Doctor, Suspect
    from core_commands.doctor.starts import ProcessStarter, bypass_of
    from core_observers.runs.compare import changes_between, other_differences
    from core_observers.runs.run import Times, run_of

    now = run_of(config, runs[-1].numerics, [], [], Times(0.0, 0.0, 0.0))
    run = _chosen(options.since, runs, now)
    changes = [] if run is None else changes_between(run.packages, now.packages)
    if run is None or not changes:
        found = Diagnosis(notes=[] if run is None else _beside(other_differences(run, now)))
        sentence = f"No plugin in use has changed since run {(run or runs[-1]).number}."
        _report(options, found, sentence, run or runs[-1], (), 0)
        return 0
    suspects = []
    for change in changes:
        files = () if change.before is None else tuple(book.copies.changed_files(change.before))
        suspects.append(Suspect(change, bypass_of(change, book.copies), files))
    starter = ProcessStarter(values)
    try:
        found = Doctor(run, suspects, starter).diagnose(with_pace=options.pace)
    finally:
        starter.close()
    if found.what is not None and not found.findings:
        found.notes += _beside(other_differences(run, now))
    if options.quarantine and found.findings:
        _put_into_quarantine(config, found.findings, run)
    head = f"Since run {run.number} ({run.last}) {len(changes)} packages with plugins changed; {starter.number} starts."
    _report(options, found, head, run, suspects, starter.number)
    return 0 if found.is_clean else 1


def _chosen(since: int | None, runs: "Sequence[Run]", now: "Run") -> "Run | None":
    """Return the run to compare with; None when no run has other plugins. Raises UserError."""
    if since is not None:
        for run in runs:
            if run.number == since:
                if run.version != now.version:
                    raise UserError(
                        f"--since {since}: that run was one of version {run.version}, this is {now.version}; `core diff` with "
                        "--left-cmd compares installations."
                    )
                return run
        numbers = ", ".join(str(run.number) for run in runs)
        raise UserError(f"--since {since}: no such run; kept are {numbers} (`core plugins doctor --runs` lists them).")
    same_version = [run for run in runs if run.version == now.version]
    if not same_version:
        raise UserError(
            f"All kept runs are of other versions than {now.version} (the newest: {runs[-1].version}); start the server once, "
            "and compare the versions with `core diff`."
        )
    return next((run for run in reversed(same_version) if run.packages != now.packages), None)


def _put_into_quarantine(config: "EngineConfig", findings: "Sequence[Finding]", run: "Run") -> None:
    """List one package of each finding: of changes that are bad only together, leaving one out is enough."""
    from core.plugin.kinds import kind_named
    from core_observers.runs.quarantine import Culprit, add_culprits

    culprits = []
    for finding in findings:
        packages = [suspect.change.now for suspect in finding.suspects if suspect.change.now is not None]
        # The one that a start can do without comes first.
        packages.sort(key=lambda package: not all(kind_named(row.split(".")[0]).replaceable for row in package.plugins))
        culprits += [Culprit(package, f"{_verb(finding)} since run {run.number}") for package in packages[:1]]
    try:
        add_culprits(Path(str(config.state_canary)), culprits)
    except (OSError, UserError) as error:
        # The findings took a minute, so they are reported all the same.
        print(safe(f"core: warning: the quarantine is not written: {error}"), file=sys.stderr)


def _verb(finding: "Finding") -> str:
    verbs = {
        "failure": "makes the start fail",
        "tokens": "changed tokens",
        "bits": "changed last bits",
        "time": "is slower",
    }
    return f"{verbs[finding.what]} ({finding.sentence})"


def _beside(differences: Sequence[str]) -> list[str]:
    return [f"Besides, there is {each}." for each in differences]


def _report(
    options: DoctorOptions, found: "Diagnosis", head: str, run: "Run", suspects: "Sequence[Suspect]", starts: int
) -> None:
    if options.json:
        print_json(_as_json(found, run, suspects, starts))
        return
    print(safe(head))
    for suspect in suspects:
        tried = "" if suspect.bypass is not None else "; cannot be bypassed"
        print(safe(f"  {suspect.change.label}: {', '.join(suspect.change.package.plugins)}{tried}"))
    if suspects:
        slower = "nothing is slower for certain" if options.pace else "pace was not measured"
        print(safe(f"Now {found.symptom}." if found.what else f"Results have the same bits, and {slower}."))
    for finding in found.findings:
        names = " and ".join(suspect.change.label for suspect in finding.suspects)
        together = " together, each alone is good," if len(finding.suspects) > 1 else ""
        print(safe(f"{names}{together} {_verb(finding)}"))
        for suspect in finding.suspects:
            files = f" (changed: {', '.join(suspect.files[:5])})" if suspect.files else ""
            print(safe(f"  {', '.join(suspect.change.package.plugins)}{files}"))
    for note in found.notes:
        print(safe(note))


def _as_json(found: "Diagnosis", run: "Run", suspects: "Sequence[Suspect]", starts: int) -> dict[str, Any]:
    def plain(suspect: "Suspect") -> dict[str, Any]:
        package = suspect.change.package
        return {
            "distribution": package.distribution or package.label,
            "label": suspect.change.label,
            "plugins": list(package.plugins),
            "files": list(suspect.files),
            "bypassed": suspect.bypass is not None,
        }

    return {
        "since": run.number,
        "starts": starts,
        "changed": [plain(suspect) for suspect in suspects],
        "what": found.what,
        "symptom": found.symptom,
        "culprits": [
            {"what": each.what, "sentence": each.sentence, "packages": [plain(suspect) for suspect in each.suspects]}
            for each in found.findings
        ],
        "notes": found.notes,
    }


def _print_runs(runs: "Sequence[Run]", *, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(list(runs)))
        return
    for run in runs:
        step = run.times[-1].step * 1000 if run.times else 0.0
        packages = (
            ", ".join(package.label for package in run.packages if not package.is_own) or "the engine's own plugins"
        )
        print(safe(f"{run.number:>4}  {run.first}  starts: {run.starts}  step: {step:.2f} ms  {packages}"))
