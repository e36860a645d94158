"""`core kernels build [MODEL] [--sm CHIP,...]`: compile kernels ahead of time, so that startup does not wait for a
compiler; `core kernels tune MODEL`: measure the fastest tiles for a model's products on this machine's GPU;
`core kernels list`: which providers serve which operations here.

Owns: the commands' arguments and output, and the detection of this machine's chips. Never does: compile, measure.
Called by: the frame.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from core.api.errors import PluginError, UserError, nearest
from core.args.arg import Arg
from core.args.show import Section, show
from core.commands.words import take_help
from core.plugin.hookspecs import Probe
from core.plugin.registry import PluginRegistry
from core_commands.cli.own_options import option_section, refuse_rest, take_options
from core_runtime.contracts.ahead import CompiledAhead, Run

VERBS = {
    "build": (
        "[MODEL] [ARGUMENTS] [--sm CHIP,...] [--jobs N]",
        "Compile kernels ahead of their first launch: those that MODEL calls with these arguments, which are those of `core "
        "serve`, or without one those that most models call.",
    ),
    "list": (
        "[--device DEVICE] [--kernels NAME,...]",
        "Show for each operation between matrices which providers serve it on this machine, best first. --ir-op-priority "
        "changes the order of one.",
    ),
    "tune": (
        "MODEL [ARGUMENTS]",
        "Measure on this machine's first GPU in which tiles the products of MODEL are quickest, and print lines for a table. "
        "The arguments are those of `core serve`.",
    ),
}


class KernelsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command's own options."""

    sm: Annotated[
        str | None,
        Arg("Chips to compile for, such as sm_90 or 90, separated by commas. Unset: those in this machine."),
    ] = None
    jobs: Annotated[
        int | None, Arg("Kernels compiled at the same time. Unset: as many as there are processors.", ge=1, le=256)
    ] = None


def kernels(words: list[str]) -> int:
    """Run the command; returns the exit code: 1 when a kernel could not be compiled."""
    verb = words.pop(0) if words else ""
    if take_help([verb, *words]) is not None:
        _help(verb)
        return 0
    if not verb:
        _help(verb)
        return 2
    if verb not in VERBS:
        raise UserError(f"core kernels {verb}: unknown; known: {', '.join(VERBS)}.{nearest(verb, VERBS)}")
    if verb == "list":
        from core_commands.cli.kernels_list import list_kernels

        return list_kernels(words)
    return _build(words) if verb == "build" else _tune(words)


def _help(verb: str) -> None:
    if verb not in VERBS:
        rows = tuple((f"{name} {words}", text) for name, (words, text) in VERBS.items())
        show("core kernels COMMAND", "About kernels for GPUs.", [Section("Commands", rows)])
        return
    usage, summary = VERBS[verb]
    sections = [option_section("Options", KernelsOptions)] if verb == "build" else []
    if verb == "list":
        from core_commands.cli.kernels_list import ListOptions

        sections = [option_section("Options", ListOptions)]
    show(f"core kernels {verb} {usage}", summary, sections)


def _build(words: list[str]) -> int:
    options = take_options(KernelsOptions, words)
    run = _run(words)
    registry = PluginRegistry()
    chips = _named(options.sm) if options.sm else _found(registry, ", such as --sm sm_90")
    jobs = options.jobs or len(os.sched_getaffinity(0))
    done: list[CompiledAhead] = []
    for name, build in _providers(registry, "ahead", "compiled ahead"):
        print(f"{name}: compiling for {', '.join(chips)}")
        done += build(chips, jobs, _say) if run is None else build(chips, jobs, _say, run)
    return _report(done)


def _tune(words: list[str]) -> int:
    from core_commands.cli.kernels_model import run_of

    if not words or (words[0].startswith("-") and not words[0].startswith("--model")):
        raise UserError(f"core kernels tune: expected a model: `core kernels tune {VERBS['tune'][0]}`.")
    registry = PluginRegistry()
    chip, *_ = _found(registry)
    for name, tune in _providers(registry, "tune", "measured"):
        print(f"{name}: measuring on {chip}", file=sys.stderr)
        text = tune(chip, run_of(words), lambda line: print(line, file=sys.stderr, flush=True))
        print(text, end="")
    return 0


def _run(words: Sequence[str]) -> Run | None:
    """Return the dry run of the model named in these words; None without words."""
    if not words:
        return None
    if words[0].startswith("-") and not words[0].startswith("--model"):
        refuse_rest("kernels", words, KernelsOptions)
    from core_commands.cli.kernels_model import run_of

    return run_of(words)


def _named(text: str) -> list[str]:
    """Return the chips named by the option, each once."""
    names: dict[str, None] = {}
    for word in text.split(","):
        name = word.strip().lower()
        names[f"sm_{name}" if name.isdigit() else name] = None
    return list(names)


def _found(registry: PluginRegistry, way_out: str = "") -> list[str]:
    """Return the chips of this machine. Raises UserError when there is none. way_out: advice for that case."""
    found: dict[str, None] = {}
    reasons: list[str] = []
    for row, answer in registry.probe().items():
        if not isinstance(answer, Probe):
            continue
        if answer.unavailable:
            reasons.append(f"{row.name}: {answer.unavailable}")
        for device in answer.devices:
            if device.profile:
                found[device.profile] = None
    if not found:
        if way_out:
            way_out = f"; name the chips{way_out}"
        raise UserError(f"core kernels: no GPU was found here ({'; '.join(reasons)}){way_out}.")
    return list(found)


def _providers(registry: PluginRegistry, capability: str, what: str) -> list[tuple[str, Any]]:
    """Return the providers with a capability, and its object: a `BuildAhead` or a `Tune`. what: the action, for
    messages.

    Raises UserError, and PluginError for a broken one.
    """
    found: list[tuple[str, Any]] = []
    for row, manifest in registry.candidates("kernels"):
        target = "" if isinstance(manifest, str) else manifest.spec.capabilities.get(capability)
        if not target:
            continue
        module, _, attribute = str(target).partition(":")
        try:
            found.append((row.name, getattr(importlib.import_module(module), attribute)))
        except (ImportError, AttributeError) as error:
            raise PluginError(f"kernels plugin '{row.name}': {target} is missing: {error}.") from error
    if not found:
        raise UserError(f"core kernels: no installed plugin has kernels that can be {what}.")
    return found


def _say(kernel: CompiledAhead, done: int, count: int) -> None:
    """Print one line per kernel; on a terminal, a line overwrites the previous one unless there is an error."""
    if kernel.error:
        print(f"[{done}/{count}] {kernel.chip} {kernel.name}: {kernel.error}", file=sys.stderr)
        return
    what = "was there" if kernel.was_there else f"{kernel.seconds:.1f} s"
    line = f"[{done}/{count}] {kernel.chip} {kernel.name}: {what}"
    if sys.stdout.isatty():
        print(f"\r\x1b[2K{line}", end="\n" if done == count else "", flush=True)
    else:
        print(line, flush=True)


def _report(done: Sequence[CompiledAhead]) -> int:
    failed = [kernel for kernel in done if kernel.error]
    had = sum(kernel.was_there for kernel in done)
    built = len(done) - had - len(failed)
    seconds = sum(kernel.seconds for kernel in done)
    print(f"{built} kernels compiled, {had} were there, {len(failed)} failed; {seconds:.0f} s of compilers' time.")
    return 1 if failed else 0
