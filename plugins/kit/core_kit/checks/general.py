"""Checks that every kind of plugin has: its manifest, its arguments, its installation, its life in a worker process.

Owns: the checks. Never does: call the methods of a kind's contract. Called by: `core_kit.suite`.
"""

from __future__ import annotations

import difflib

import msgspec

from core.args.plugin_arguments import convert_struct
from core.plugin.capabilities import BOOLEANS, LISTS
from core.plugin.discovery import duplicates
from core.plugin.editable import stale
from core.plugin.hookspecs import CONTRACT
from core.plugin.kinds import kind_named
from core.plugin.requirements import unmet
from core_kit.case import Failure, Skipped, Subject, Warned
from core_kit.worker import Answer, Task, ask
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

SLOW_IMPORT = 0.25
ALIKE = 0.85
"""Similarity above which an unknown capability counts as a misspelling of a known one."""
HOOKS = {
    "core_claim": ("quantization", "loader", "model"),
    "core_supports": ("attention", "kernels", "quantization", "speculative", "grammar", "executor"),
    "core_probe": ("platform",),
    "core_propose": ("platform",),
    "core_numerics": ("kernels", "attention"),
    "core_weights_nbytes": ("speculative",),
    "core_draft_spec": ("speculative",),
}
"""Kinds for which each optional hook is called; on other kinds it would never be called."""


def light_manifest(subject: Subject) -> None:
    """The manifest is light: a fresh interpreter imports it without torch."""
    answer = _worker(subject, load=False)
    if answer.error:
        raise Failure(answer.error)
    if "torch" in answer.heavy:
        raise Failure(
            f"importing the manifest takes {answer.seconds:.1f} s, because it imports {', '.join(answer.heavy)}; "
            "import them inside core_load"
        )
    if answer.heavy or answer.seconds > SLOW_IMPORT:
        what = f" and brings in {', '.join(answer.heavy)}" if answer.heavy else ""
        raise Warned(f"importing the manifest takes {answer.seconds * 1000:.0f} ms{what}; every command pays for it")


def current_contract(subject: Subject) -> None:
    """CONTRACT is a number that this engine accepts, and its newest."""
    if subject.manifest.contract < CONTRACT:
        raise Warned(
            f"CONTRACT is {subject.manifest.contract}; {CONTRACT} is current and the next one will no longer accept it"
        )


def sound_spec(subject: Subject) -> None:
    """The spec has a summary, and capabilities whose names and values the core understands."""
    spec = subject.manifest.spec
    if spec.alias_of is None and not spec.summary.strip():
        raise Failure("PluginSpec.summary is empty; `core plugins list` has nothing to show")
    known = LISTS | BOOLEANS | {"row_multiple", "rank_multiple", "activation_dtype"}
    for name, value in spec.capabilities.items():
        alike = difflib.get_close_matches(name, known, n=1, cutoff=ALIKE)
        if alike and name not in known:
            raise Failure(f"capability '{name}' is not one that the core knows. Did you mean '{alike[0]}'?")
        if name in LISTS and not isinstance(value, (list, tuple)):
            raise Failure(f"capability '{name}' is {value!r}, expected a list; leave it out for no limit")
        if name in LISTS and not value:
            raise Failure(f"capability '{name}' is empty, so nothing is ever served; leave it out for no limit")
        if name in BOOLEANS and not isinstance(value, bool):
            raise Failure(f"capability '{name}' is {value!r}, expected True or False")


def sound_arguments(subject: Subject) -> None:
    """Its own arguments have descriptions, and defaults that it accepts itself."""
    struct = subject.manifest.spec.arguments
    if struct is None:
        return
    if kind_named(subject.kind).config_argument is None:
        raise Failure(f"{struct.__name__} cannot be given by anyone: plugins of kind {subject.kind} take no arguments")
    if not struct.__struct_config__.frozen:
        raise Failure(f"{struct.__name__} can be changed after it was checked; declare it with frozen=True")
    for info in msgspec.structs.fields(struct):
        if not any(getattr(part, "description", None) for part in _extras(struct, info.name)):
            raise Failure(
                f"argument '{info.name}' has no description; wrap its type in Annotated[..., msgspec.Meta(description=...)]"
            )
    needed = {info.name for info in msgspec.structs.fields(struct) if info.required}
    if needed - set(subject.arguments):
        raise Skipped(f"it needs {', '.join(sorted(needed))}; give them with --arguments")
    built, problems = convert_struct(struct, dict(subject.arguments), "arguments")
    if problems:
        raise Failure(" ".join(problems))
    values = {name: getattr(built, name) for name in struct.__struct_fields__}
    plain = msgspec.to_builtins(values)
    problems = convert_struct(struct, plain, "arguments")[1]
    if problems:
        raise Failure(f"a default does not fit its own type: {' '.join(problems)}")


def hooks_of_its_kind(subject: Subject) -> None:
    """Every hook it has is one that its kind is asked with."""
    for hook, kinds in HOOKS.items():
        if subject.manifest.implements(hook) and subject.kind not in kinds:
            raise Failure(f"{hook} is never called for kind {subject.kind}, only for {', '.join(kinds)}; remove it")
    if subject.kind == "platform" and not subject.manifest.implements("core_probe"):
        raise Failure("a platform needs core_probe: nobody else knows its devices")


def claims_only_its_own(subject: Subject) -> None:
    """It claims neither a folder of strange files nor a plain checkpoint of an unknown model."""
    if not subject.manifest.implements("core_claim"):
        return
    strange: FileFacts | CheckpointFacts = FileFacts("notes", "/notes", True, ("notes.txt", "picture.png"))
    if subject.kind != "loader":
        strange = CheckpointFacts("notes", "strange_format", "strange_model", tensor_dtypes=("F32",))
    claim = subject.manifest.call("core_claim", facts=strange)
    if claim is not None:
        raise Failure(f"it claims {strange}, saying '{claim}'; claim only what is certainly yours")


def fits_contract(subject: Subject) -> None:
    """core_load builds an object with every part of its kind's contract, callable as the core calls it."""
    assert subject.loaded is not None


def lives_in_workers(subject: Subject) -> None:
    """A freshly spawned process loads exactly this plugin from the resolved table."""
    answer = _worker(subject, load=True)
    if answer.error:
        raise Failure(answer.error)
    if answer.skipped:
        raise Skipped(answer.skipped)


def tells_numerics(subject: Subject) -> None:
    """core_numerics tells without torch what the loaded object reports."""
    if subject.kind not in HOOKS["core_numerics"]:
        return
    told = subject.manifest.call("core_numerics", platform={}, arguments={})
    if told is None:
        raise Warned("without core_numerics, `core config explain` cannot print what results depend on")
    if told != subject.loaded.numerics:
        raise Failure(f"core_numerics tells '{told}', the loaded object says '{subject.loaded.numerics}'")


def sound_installation(subject: Subject) -> None:
    """It is installed as its source says, and no other package offers the same name."""
    sentence = stale(subject.row.distribution)
    if sentence:
        raise Failure(sentence)
    versions = unmet(subject.row.distribution)
    if versions:
        raise Failure(versions)
    registry, row = subject.registry, subject.row
    usable = [other for other in registry.rows(row.kind) if not registry.blocked(other)]
    if (row.kind, row.name) in duplicates(usable):
        raise Warned(
            f"another package offers {subject.kind} '{subject.row.name}', too; users must write DISTRIBUTION:name"
        )


CHECKS = (
    light_manifest,
    current_contract,
    sound_spec,
    sound_arguments,
    hooks_of_its_kind,
    claims_only_its_own,
    fits_contract,
    lives_in_workers,
    tells_numerics,
    sound_installation,
)


def _worker(subject: Subject, load: bool) -> Answer:
    model = subject.model
    if load and subject.kind == "quantization" and model is None:
        model = subject.sample.manifest.ref
        assert subject.loaded is not None  # skips methods that refuse a plain checkpoint
    if load and subject.kind == "processor":
        assert subject.loaded is not None  # skips those that refuse the kit's checkpoint
    return ask(Task(subject.row, load, model, dict(subject.arguments), subject.plugins))


def _extras(struct: type[msgspec.Struct], name: str) -> tuple[object, ...]:
    import typing

    return getattr(typing.get_type_hints(struct, include_extras=True)[name], "__metadata__", ())
