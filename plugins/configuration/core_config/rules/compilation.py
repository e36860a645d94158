"""Rules about recording (CUDA graphs) and compilation.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core_config.compilation import (
    COMPILER,
    DECODES,
    PREFIX,
    TWICE,
    Statement,
    compiling_statements,
    recorded_sizes,
    recording_statements,
    repeated_statements,
)
from core_config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn, is_count

SERVED_MODES = ("NONE", "FULL", DECODES)


def single_modes_are_served(facts: Facts) -> Findings:
    """Whole models are not compiled, and steps are recorded whole."""
    keys = facts.settings.mapping("compilation_config")
    for name in ("mode", "level"):
        mode = keys.get(name)
        if mode in (1, 2):
            yield Warn(
                f"{PREFIX}.{name} {mode} means 3: this engine never compiles whole models, but what lies between matrices and "
                "attention."
            )
    recorded = keys.get("cudagraph_mode")
    if recorded is not None and recorded not in SERVED_MODES:
        yield Problem(
            f"{PREFIX}.cudagraph_mode {recorded}: this engine records steps whole, not in pieces between attention; use "
            f"{', '.join(SERVED_MODES[:-1])} or {SERVED_MODES[-1]}."
        )


def repeated_values_agree(facts: Facts) -> Findings:
    """All arguments that control recording, compilation and sizes agree."""
    settings = facts.settings
    said = [recording_statements(settings), compiling_statements(settings)]
    said += [repeated_statements(settings, name) for name in TWICE]
    for statements in said:
        different = [other for other in statements if other.value != statements[0].value]
        if different:
            both = f"{statements[0].text} and {different[0].text}"
            yield Problem(f"{both} contradict each other; leave one of them out.")


def nothing_is_recorded_where_that_is_said(facts: Facts) -> Findings:
    """`-O0` and `cudagraph_mode NONE` mean `--enforce-eager`."""
    said = recording_statements(facts.settings)
    if said and not said[0].value:
        yield Derive("enforce_eager", True, said[0].text)
        sizes = _given_sizes(facts)
        if sizes:
            yield Warn(f"{sizes[0].text} has no effect: with {said[0].text} nothing is recorded.")


def torch_compiles_where_that_is_said(facts: Facts) -> Findings:
    """`-O3` and `mode 3` add the provider that compiles, after those with existing kernels."""
    said = compiling_statements(facts.settings)
    if said and said[0].value:
        yield Derive("kernels", ["auto", COMPILER], said[0].text)


def largest_size_is_among_the_sizes(facts: Facts) -> Findings:
    """The largest recorded size is one of the listed sizes."""
    sizes, largest = [repeated_statements(facts.settings, name) for name in TWICE]
    if sizes and largest and largest[0].value not in sizes[0].value:
        yield Problem(f"{largest[0].text}: it is none of {sizes[0].text}; leave it out, or list it.")


def compiled_code_is_kept_in_a_directory(facts: Facts) -> Findings:
    """The cache of compiled code is a directory, and has an effect only where torch compiles."""
    path = facts.settings.mapping("compilation_config").get("cache_dir")
    if not path:
        return
    if Path(path).exists() and not Path(path).is_dir():
        yield Problem(f"{PREFIX}.cache_dir {path}: it is a file; name a directory.")
    elif COMPILER not in facts["kernels"]:
        yield Warn(f"{PREFIX}.cache_dir has no effect: nothing is compiled; --optimization-level 3 compiles.")


def what_is_compiled_is_written(facts: Facts) -> Findings:
    """What the compiler makes is written to a directory, where it compiles at all."""
    path = facts.settings.mapping("compilation_config").get("debug_dump_path")
    if not path:
        return
    if Path(path).exists() and not Path(path).is_dir():
        yield Problem(f"{PREFIX}.debug_dump_path {path}: it is a file; name a directory.")
    elif COMPILER not in facts["kernels"]:
        yield Warn(f"{PREFIX}.debug_dump_path has no effect: nothing is compiled; --optimization-level 3 compiles.")


def named_blocks_are_not_recorded(facts: Facts) -> Findings:
    """Blocks are named for profiles by the layers' own code, which recorded steps do not run."""
    if not facts["enable_layerwise_nvtx_tracing"]:
        return
    yield Derive("enforce_eager", True, "--enable-layerwise-nvtx-tracing: recorded steps have no ranges")
    if facts.given("enforce_eager") and not facts["enforce_eager"]:
        yield Warn("--enable-layerwise-nvtx-tracing has no effect in recorded steps; leave --no-enforce-eager out.")


def level_is_told(facts: Facts) -> Findings:
    """Without a level, steps are recorded in all sizes and nothing is compiled; without sizes, 1 means 2."""
    level = facts["optimization_level"]
    if level is None and not facts["enforce_eager"] and COMPILER not in facts["kernels"]:
        yield Derive("optimization_level", 2, "steps are recorded, nothing is compiled")
    elif level == 1 and not _has_sizes(facts):
        yield Derive("optimization_level", 1, f"the same as 2: {_why_no_sizes(facts)}", canonical=True)


def sizes_need_recordings_of_one_size(facts: Facts) -> Findings:
    """Sizes have no effect where one recording serves all sizes."""
    sizes = _given_sizes(facts)
    if sizes and not _has_sizes(facts) and not facts["enforce_eager"]:
        yield Warn(f"{sizes[0].text} has no effect: {_why_no_sizes(facts)}.")


def platform_and_sizes_agree(facts: Facts) -> Findings:
    """Requested sizes respect the platform's own limit of recorded sizes."""
    limit = facts.settings.mapping("platform_config").get("largest_graph")
    sizes = recorded_sizes(facts.settings)
    given = _given_sizes(facts)
    if is_count(limit, 0) and sizes and given and max(sizes) > limit:
        yield Problem(
            f"{given[0].text} and --platform-config.largest-graph {limit} contradict each other; leave one of them out."
        )


def _given_sizes(facts: Facts) -> Sequence[Statement]:
    """Return the user's statements about sizes."""
    return [said for name in TWICE for said in repeated_statements(facts.settings, name)]


def _has_sizes(facts: Facts) -> bool:
    """Whether a recording of the platform serves exactly one number of rows."""
    return facts.capability("device_graphs") is True


def _why_no_sizes(facts: Facts) -> str:
    name = facts.platform.name if facts.platform else "cpu"
    return f"on {name}, one recording serves steps of every size"


RULES: tuple[Rule, ...] = (
    Rule(single_modes_are_served),
    Rule(repeated_values_agree),
    Rule(nothing_is_recorded_where_that_is_said),
    Rule(torch_compiles_where_that_is_said),
    Rule(largest_size_is_among_the_sizes),
    Rule(compiled_code_is_kept_in_a_directory),
    Rule(what_is_compiled_is_written),
    Rule(named_blocks_are_not_recorded),
    Rule(level_is_told, "platform"),
    Rule(sizes_need_recordings_of_one_size, "platform"),
    Rule(platform_and_sizes_agree, "platform"),
)
