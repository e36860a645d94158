"""The merging of all sources of arguments; every value keeps its origin.

Precedence: command line or keyword > YAML file > environment > default.

Owns: the YAML file, the environment variables, merging, and the refusal of what the engine does not serve.
Never does: derive a value (`core_config` does). Called by: config, for the command line and for `LLM(...)` alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.api.errors import nearest
from core.args.arg import HIDDEN, Given
from core.args.schema import Field, flag_of, schema
from core_config.arguments import environment, lookup
from core_config.arguments.convert import convert
from core_config.arguments.parser import ORIGIN

ENVIRONMENT = {
    "CORE_PLUGINS": "plugins",
    "CORE_API_KEY": "api_key",
    "CORE_ADMIN_API_KEY": "admin_api_key",
    "CORE_LOG_LEVEL": "log_level",
    "HF_TOKEN": "hf_token",
    "HF_ENDPOINT": "hf_endpoint",
}
LAUNCHER = {
    "RANK": "node_rank",
    "WORLD_SIZE": "nnodes",
    "MASTER_ADDR": "master_addr",
    "MASTER_PORT": "master_port",
}
"""Variables that torchrun sets for its processes, read with `--distributed-executor-backend external_launcher` alone."""
LONGEST_VALUE = 200

Layer = dict[str, Given]


@dataclass(slots=True)
class Merged:
    """Every argument of the schema with its origin, every problem and every warning."""

    values: dict[str, Given]
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def value(self, name: str) -> Any:
        """Return the value of `name`, an argument of the schema."""
        return self.values[name].value

    def is_set(self, name: str) -> bool:
        """Whether the user gave `name` in any way."""
        return self.values[name].origin != "default"

    def set_by_user(self) -> tuple[str, ...]:
        """Return the names of all arguments that the user gave."""
        return tuple(name for name in self.values if self.is_set(name))


def merge(explicit: Mapping[str, Any], environ: Mapping[str, str]) -> Merged:
    """Merge explicit values (plain, or `Given` with an origin) with the YAML file that they may name, and `environ`.

    None for an argument whose default is None leaves it unset, whatever a source of lower precedence says. For a name that
    the engine does not serve, the value of highest precedence is refused, unless it has no effect.
    """
    out = Merged({})
    layers = [_explicit(explicit, out)]
    config = layers[0].get("config")
    if config is not None and config.value is not None:
        layers.append(_yaml(config.value, out))
    layers.append(_environment(environ, out))
    winners: Layer = {}
    for layer in reversed(layers):
        winners |= layer
    backend = winners.get("distributed_executor_backend")
    if backend is not None and backend.value == "external_launcher":
        winners = _environment(environ, out, LAUNCHER) | winners
    for name, declared in schema().fields.items():
        given = winners.pop(name, None)
        leaves_open = given is not None and given.value is None and declared.raw_default is None
        if given is None or leaves_open:
            given = Given(declared.default, "default")
        out.values[name] = given
    for name, given in winners.items():
        _refuse(name, given, out)
    refuses = out.value("fail_on_environ_validation")
    unread = environment.unread(environ, ENVIRONMENT, strict=refuses)
    (out.problems if refuses else out.warnings).extend(unread)
    return out


def _refuse(name: str, given: Given, out: Merged) -> None:
    """A problem for each part of a foreign name's value that asks for something."""
    from core_config.arguments import foreign

    row = foreign.table()[name]
    for path, part, reason in foreign.refusals(row, given.value):
        shown = f"{path} {part!r}"
        if given.origin == ORIGIN:
            shown = _as_on_the_command_line(path, part)
        elif given.origin.startswith("config file "):
            shown = f"{given.origin.removeprefix('config file ')}: {shown}"
        end = "" if reason.endswith("?") else "."
        out.problems.append(f"{shown}: {reason}{end}")


def _as_on_the_command_line(path: str, value: Any) -> str:
    """Return an argument and its value as they are written on the command line."""
    if value is True:
        return flag_of(path)
    if isinstance(value, list):
        return " ".join([flag_of(path), *map(str, value)])
    return f"{flag_of(path)} {value}"


def _explicit(explicit: Mapping[str, Any], out: Merged) -> Layer:
    layer: Layer = {}
    for key, value in explicit.items():
        name = str(key)
        given = value if isinstance(value, Given) else Given(value, "argument")
        shown = flag_of(name) if given.origin == ORIGIN else name
        _take(layer, name, given, shown, out)
    return layer


def _environment(environ: Mapping[str, str], out: Merged, names: Mapping[str, str] = ENVIRONMENT) -> Layer:
    """Read the values of variables. names: the argument of each variable."""
    layer: Layer = {}
    for variable, name in names.items():
        value = environ.get(variable)
        if value:
            given = Given(value, f"environment {variable}")
            _take(layer, name, given, variable, out)
    return layer


def _yaml(name: str, out: Merged) -> Layer:
    """Read the values of a configuration file; none, and a problem, when it cannot be used."""
    import yaml

    shown = f"--config {name}"
    try:
        path = Path(name).expanduser()
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError) as error:
        # RuntimeError includes RecursionError, which yaml raises for a file that is nested too deeply.
        out.problems.append(f"{shown}: cannot be read: {' '.join(str(error).split())}.")
        return {}
    except yaml.YAMLError as error:
        out.problems.append(f"{shown}: not valid YAML: {' '.join(str(error).split())}.")
        return {}
    if document is None:
        return {}
    if not isinstance(document, dict):
        out.problems.append(f"{shown}: expected a mapping of argument names to values, got {type(document).__name__}.")
        return {}
    entries = {str(key): value for key, value in document.items()}
    if "config" in entries:
        out.problems.append(f"{shown}: a file cannot name another file with 'config'; write one file.")
        del entries["config"]
    layer: Layer = {}
    for key, value in entries.items():
        given = Given(value, f"config file {path}")
        _take(layer, key, given, f"{path}: {key}", out)
    return layer


def _take(layer: Layer, key: str, given: Given, shown: str, out: Merged) -> None:
    """Convert one value and store it in its layer. shown: the name as problems and warnings show it."""
    declared, value = _understood(key, given.value, shown, out)
    if declared is None:
        return
    if value is None and declared.declared and not declared.optional:
        return
    try:
        converted = convert(declared, value)
    except ValueError as error:
        older = _older(declared, value)
        if older is None:
            _report(declared, shown, value, error, out)
            return
        converted, sentence = older
        out.warnings.append(f"{shown} {_shortened(value)}: {sentence}.")
    before = layer.get(declared.name)
    if before is not None and before.value != converted:
        out.warnings.append(f"{shown}: {declared.name} is given twice; the last value is used.")
    layer[declared.name] = Given(converted, given.origin)


def _understood(key: str, value: Any, shown: str, out: Merged) -> tuple[Field | None, Any]:
    """Return the argument called `key` with its value; (None, ...) when there is nothing to convert."""
    declared = lookup.named(key)
    if declared is None:
        hint = nearest(key.replace("-", "_"), schema().fields)
        out.problems.append(f"{shown}: unknown argument.{hint} See `core serve --help` for all.")
        return None, None
    if declared.declared:
        return declared, value
    return _translated(declared, value, shown, out)


def _translated(older: Field, value: Any, shown: str, out: Merged) -> tuple[Field | None, Any]:
    """An older name that is still understood becomes the argument that it means, with a warning; others stay."""
    from core_config.arguments import foreign

    row = foreign.table()[older.name]
    if row.kind != "older":
        return older, value
    out.warnings.append(f"{shown}: {row.sentence}.")
    if not row.text.startswith("--no-"):
        return None, None
    meant = lookup.named(row.text.removeprefix("--no-"))
    assert meant is not None
    try:
        return meant, not convert(meant, value)
    except ValueError as error:
        _report(meant, shown, value, error, out)
        return None, None


def _older(declared: Field, value: Any) -> tuple[str, str] | None:
    """Return the meaning of an older value, and the sentence about it. The table is read for mistakes only."""
    from core_config.arguments.foreign import older_value

    return older_value(declared.name, value)


def _report(declared: Field, shown: str, value: Any, error: ValueError, out: Merged) -> None:
    """Add the problem of a value that cannot be converted; the value is shortened, or hidden when it is a secret."""
    text = str(error)
    end = "" if text.endswith(("?", ".")) else "."
    written = HIDDEN if declared.arg.secret else _shortened(value)
    out.problems.append(f"{shown} {written}: {text}{end}")


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."
