"""The report on a checkpoint: its reader, the tensors and keys that are read, those that are ignored with the reason,
and those that are refused.

Owns: the report. Never does: import torch, read a weight, stop at the first problem where it can go on.
Called by: `core models explain`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from core.api.errors import ConfigError, UserError
from core.api.specs import KV_TYPES
from core.plugin.discovery import origin
from core.plugin.hookspecs import LoadContext
from core.plugin.table import load_plugin
from core_commands.cli.model_uses import Uses
from core_config.arguments.sources import merge
from core_config.model_shape import ModelShape, model_shape
from core_config.resolve import discover, find_model
from core_config.rules import Facts
from core_config.selection import select_tokenizer
from core_config.stages import limits
from core_config.stages.attempt import Attempt
from core_config.stages.attention import settled_state_dtype, skipped_dtypes
from core_config.stages.checkpoint import Checkpoint, find_tokenizer
from core_config.stages.choices import choose_quantization
from core_config.stages.family import find_family, text_alone
from core_config.stages.settings import Settings, underscored
from core_config.stages.tensor_groups import TensorGroup, group_of, grouped
from core_config.stages.weights import quantization_plan
from core_frontend.prompts.tokenizing import tokens_beyond
from core_runtime.models import families
from core_runtime.models.configuration import KeyProblem
from core_runtime.models.families.wrappers import without_key
from core_runtime.models.tensors.tensor_check import check_tensors, tensors_read
from core_runtime.models.tensors.weight_map import WeightMap
from core_runtime.models.unread import refuse
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec
from core_tokens.files import FILE_MODES
from core_tokens.plugged import Plug
from core_tokens.tokenizer import Tokenizer


class ModelReport(msgspec.Struct, kw_only=True):
    """Everything known about a checkpoint before a weight is read.

    reader: a row, a plugin or transformers; empty if there is none.
    tensors: tensors that are read, by group. ignored: tensors that are not; the name of a group is the reason.
    keys_read: keys of the configuration that are read. keys_neutral: key → why it changes nothing. keys_unknown: keys
        that no known model has.
    refused: every reason why it cannot be served.
    shape: None if it cannot be determined.
    uses: what the model can do → how, or why not; see `Uses`. Empty where transformers' modules run it.
    """

    model: str
    format: str = ""
    reader: str = ""
    model_type: str = ""
    architectures: list[str] = []
    quantization: str | None = None
    tensors: list[TensorGroup] = []
    ignored: list[TensorGroup] = []
    keys_read: list[str] = []
    keys_neutral: dict[str, str] = {}
    keys_unknown: list[str] = []
    warnings: list[str] = []
    refused: list[str] = []
    shape: ModelShape | None = None
    uses: dict[str, str] = {}


@dataclass(slots=True)
class _Found:
    """Facts known about a model. names: None if its reader does not report what it ignores."""

    reader: str
    spec: DecoderSpec | None = None
    manifest: CheckpointManifest | None = None
    names: WeightMap | None = None
    reading: families.Reading | None = None
    refused: list[str] = field(default_factory=list)


def model_report(arguments: Mapping[str, Any], problems: Sequence[str] = ()) -> ModelReport:
    """Build the report about `arguments["model"]`. problems: of the command line.

    Raises ConfigError when there is no checkpoint to report about.
    """
    merged = merge(arguments, os.environ)
    facts = Facts(Settings(merged), "explain", os.environ)
    further = [problem for problem in merged.problems if problem not in problems]
    attempt = Attempt(facts, [*problems, *further], list(merged.warnings))
    discover(attempt)
    checkpoint = attempt.answer_of(lambda: find_model(attempt))
    if checkpoint is None:
        raise ConfigError(attempt.problems)
    manifest = checkpoint.manifest
    report = ModelReport(model=manifest.ref, format=manifest.format)
    report.model_type = str(manifest.config.get("model_type") or "")
    report.architectures = [str(name) for name in manifest.config.get("architectures") or ()]
    said = text_alone(manifest.config, manifest.tensors)
    attempt.warnings += [said] if said else []
    found = _find(attempt, checkpoint)
    report.reader = found.reader
    _report_keys(report, found)
    if found.spec is not None and found.manifest is not None:
        _report_tensors(report, attempt, found, manifest, found.spec, found.manifest)
        settings, plugins, path = attempt.settings, attempt.plugins, checkpoint.path
        report.uses = Uses(settings, plugins, path, manifest, found.spec, report.quantization).all()
    elif found.manifest is not None:
        report.tensors = grouped((group_of(name), info) for name, info in found.manifest.tensors.items())
    report.warnings = attempt.warnings
    report.refused = attempt.problems
    return report


def _find(attempt: Attempt, checkpoint: Checkpoint) -> _Found:
    """Determine the checkpoint's reader and its interpretation; refusals are added to the attempt's problems."""
    manifest = checkpoint.manifest
    if attempt.settings["model_impl"] == "transformers":
        return _found_by_others(attempt, checkpoint)
    try:
        row = families.family_for(manifest.config)
    except families.UnknownArchitecture:
        return _found_by_others(attempt, checkpoint)
    except UserError as error:
        attempt.problems.append(str(error))
        return _Found("")
    found = _Found(f"the row '{row.name}' of the table")
    found.reading = _read(attempt, manifest.config, row)
    if found.reading is None:
        return found
    spec = found.reading.spec
    found.names = attempt.answer_of(lambda: families.weight_map(manifest, spec))
    if found.names is not None:
        found.spec = spec
        found.manifest = found.names.manifest
    return found


def _found_by_others(attempt: Attempt, checkpoint: Checkpoint) -> _Found:
    """Determine the reader where the table has no row."""
    settings = attempt.settings
    implementation, trusted = settings["model_impl"], settings["trust_remote_code"]
    told = attempt.answer_of(
        lambda: find_family(attempt.plugins, checkpoint, implementation, trust_remote_code=trusted)
    )
    if told is None:
        return _Found("")
    canonical, spec, choice = told
    manifest = checkpoint.manifest
    if not isinstance(spec, DecoderSpec):
        return _Found("the modules of transformers", None, canonical.manifest)
    assert choice is not None, "the table was asked before"
    plugin = choice.manifest
    found = _Found(f"model plugin '{plugin.row.name}' ({origin(plugin.row)})", spec, canonical.manifest)
    family = load_plugin(plugin, LoadContext(facts=manifest.facts(), manifest=manifest))
    row = families.plugin_row(family)
    found.names = families.plugin_names(family, manifest, spec)
    if row is not None:
        found.reading = families.read_configuration(manifest.config, row)
    return found


def _read(attempt: Attempt, config: Mapping[str, Any], row: families.Family) -> families.Reading | None:
    """Read the configuration with its row; None when a value is invalid. Every such value becomes a problem."""
    values = config
    refused: set[str] = set()
    while True:
        try:
            reading = families.read_configuration(values, row)
        except KeyProblem as problem:
            attempt.problems.append(str(problem))
            if problem.key in refused:
                return None
            refused.add(problem.key)
            values = without_key(
                values, problem.key
            )  # falls back to the family's usual value, to detect further problems
        except UserError as error:
            attempt.problems.append(str(error))
            return None
        else:
            break
    attempt.answer_of(lambda: refuse(reading.unread, row.name))
    return None if refused else reading


def _report_keys(report: ModelReport, found: _Found) -> None:
    if found.reading is None:
        return
    report.keys_read = sorted(found.reading.read)
    report.keys_neutral = dict(sorted(found.reading.unread.neutral.items()))
    report.keys_unknown = sorted(found.reading.unread.unknown)


def _report_tensors(
    report: ModelReport,
    attempt: Attempt,
    found: _Found,
    stored: CheckpointManifest,
    spec: DecoderSpec,
    canonical: CheckpointManifest,
) -> None:
    """Report the tensors that are read and ignored, and the shape. stored: the checkpoint under its own names."""
    settings = attempt.settings
    limits.settle_dtypes(settings, canonical)
    choose_quantization(attempt, canonical.facts())
    report.quantization = attempt.chosen.name("quantization")
    plan = attempt.answer_of(lambda: quantization_plan(settings, attempt.chosen, canonical))
    if plan is not None or report.quantization is None:
        attempt.problems += check_tensors(canonical, spec, plan).problems(canonical.ref, spec)
    read = [canonical.tensors[name] for name in tensors_read(spec, plan) if name in canonical.tensors]
    report.tensors = grouped((group_of(info.name), info) for info in read)
    if found.names is not None:
        ignored = found.names.ignored.items()
        report.ignored = grouped((why, stored.tensors[name]) for name, why in ignored)
    attempt.answer_of(lambda: _check_vocabulary(attempt, stored, spec))
    dtype = settings["kv_cache_dtype"]
    weights_bytes = sum(group.nbytes for group in report.tensors)
    kv_dtype = dtype if dtype in KV_TYPES else "bfloat16"
    kept = attempt.answer_of(lambda: skipped_dtypes(settings, spec)) or ()
    report.shape = model_shape(spec, weights_bytes, kv_dtype, kept, settled_state_dtype(settings))


def _check_vocabulary(attempt: Attempt, manifest: CheckpointManifest, spec: DecoderSpec) -> None:
    """Warn about tokens that the tokenizer has but the model does not."""
    override = find_tokenizer(attempt.settings)
    source = manifest.tokenizer
    missing = override is None and source.directory is None and source.vocabulary is None
    if missing or attempt.settings["skip_tokenizer_init"]:
        return
    mode = attempt.settings["tokenizer_mode"]
    plug = None
    if mode not in FILE_MODES:
        row = select_tokenizer(attempt.plugins, mode).manifests[0].row
        plug = Plug(row, underscored(attempt.settings["tokenizer_config"]))
    said = tokens_beyond(Tokenizer.from_source(source, override, mode, plug), spec.vocab_size)
    if said:
        attempt.warnings.append(said)
