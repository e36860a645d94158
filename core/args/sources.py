"""Precedence: command line or keyword > YAML file > environment > default. Every value keeps its origin.

Owns: the YAML file, the environment variables, merging, and the refusal of what the engine does not serve.
Never does: derive a value (`core.config` does). Called by: config, for the command line and for `LLM(...)` alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.api.errors import nearest
from core.args.arg import HIDDEN, Given
from core.args.convert import understand, unserved
from core.args.legacy import translate
from core.args.parser import ORIGIN
from core.args.retired import Retired
from core.args.schema import Field, schema

ENVIRONMENT = {"CORE_PLUGINS": "plugins", "CORE_API_KEY": "api_key"}


@dataclass(slots=True)
class Merged:
    """Every argument of the schema with its origin, every problem and every warning.

    refused: values that were given and understood but are not served yet (each is a problem as well); `values` has the
    default in their place, so that what is derived from it holds.
    """

    values: dict[str, Given]
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    refused: dict[str, Given] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """The value of `name`."""
        return self.values[name].value

    def asked(self, name: str) -> Any:
        """The value that was asked for, served or not."""
        return self.refused.get(name, self.values[name]).value

    def is_set(self, name: str) -> bool:
        """Whether the user gave `name` in any way."""
        return self.values[name].origin != "default" or name in self.refused

    def set_by_user(self) -> tuple[str, ...]:
        """Names of all arguments that the user gave."""
        return tuple(name for name in self.values if self.is_set(name))


def merge(explicit: Mapping[str, Any], environ: Mapping[str, str]) -> Merged:
    """Merge explicit values (plain, or `Given` with an origin) with the YAML file that they may name, and `environ`.

    None for an argument whose default is None leaves it open, whatever a lower layer says.
    """
    out = Merged({})
    layers: list[dict[str, Given]] = [_explicit(explicit, out)]
    config = layers[0].get("config")
    if config is not None and config.value is not None:
        layers.append(_yaml(config.value, out))
    layers.append(_environment(environ, out))
    for name, declared in schema().fields.items():
        given = next((layer[name] for layer in layers if name in layer), None)
        unset = given is not None and given.value is None and declared.raw_default is None
        if given is not None and (unset or _refuse(declared, given, out)):
            given = None
        out.values[name] = given if given is not None else Given(declared.default, "default")
    return out


def _refuse(declared: Field, given: Given, out: Merged) -> bool:
    """Whether the engine does not serve the value; each part of it that it does not is a problem."""
    reasons = unserved(declared, given.value)
    for path, part, reason in reasons:
        dotted = f".{path}" if path else ""
        if given.origin == ORIGIN:
            shown = declared.flag + dotted
        elif given.origin.startswith("config file "):
            shown = f"{given.origin.removeprefix('config file ')}: {declared.name}{dotted}"
        else:
            shown = declared.name + dotted
        text = part if given.origin == ORIGIN and not isinstance(part, (list, dict)) else repr(part)
        out.problems.append(f"{shown} {HIDDEN if declared.arg.secret else text}: {reason}.")
    if reasons:
        out.refused[declared.name] = given
    return bool(reasons)


def _explicit(explicit: Mapping[str, Any], out: Merged) -> dict[str, Given]:
    plain = {str(name): value.value if isinstance(value, Given) else value for name, value in explicit.items()}
    layer = _convert(plain, "argument", "{}", out, internal=True)
    for name, value in explicit.items():
        if isinstance(value, Given) and name in layer:
            layer[name] = Given(layer[name].value, value.origin)
    return layer


def _environment(environ: Mapping[str, str], out: Merged) -> dict[str, Given]:
    layer: dict[str, Given] = {}
    for variable, name in ENVIRONMENT.items():
        if environ.get(variable):
            layer |= _convert({name: environ[variable]}, f"environment {variable}", variable, out)
    return layer


def _yaml(name: str, out: Merged) -> dict[str, Given]:
    import yaml

    shown = f"--config {name}"
    try:
        path = Path(name).expanduser()
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError) as error:
        out.problems.append(f"{shown}: cannot be read: {' '.join(str(error).split())}.")
        return {}
    except (yaml.YAMLError, RecursionError) as error:
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
    return _convert(entries, f"config file {path}", f"{path}: {{}}", out)


def _convert(
    plain: Mapping[str, Any], origin: str, label: str, out: Merged, *, internal: bool = False
) -> dict[str, Given]:
    """Convert one layer. label: how a value's name is shown, with `{}` for the name. internal: from Python."""
    known = schema()
    layer: dict[str, Given] = {}
    for key, given in plain.items():
        shown, value = label.replace("{}", key), given
        declared = known.named(key)
        if declared is None and (old := known.gone(key)) is not None:
            declared, value = _retired(old, shown, value, out)
            if declared is None:
                continue
        if declared is None or (declared.arg.internal and not internal):
            hint = nearest(key.replace("-", "_"), known.fields)
            out.problems.append(f"{shown}: unknown argument.{hint} See `core serve --help` for all.")
            continue
        if value is None and not declared.optional:
            continue
        translated, warnings = translate(declared, value)
        out.warnings += warnings
        try:
            converted = understand(declared, translated)
        except ValueError as error:
            text = str(error)
            written = HIDDEN if declared.arg.secret else _short(value)
            out.problems.append(f"{shown} {written}: {text if text.endswith(('?', '.')) else text + '.'}")
            continue
        if declared.name in layer and layer[declared.name].value != converted:
            out.warnings.append(f"{shown}: {declared.name} is given twice; the last value is used.")
        layer[declared.name] = Given(converted, origin)
    return layer


def _retired(old: Retired, shown: str, value: Any, out: Merged) -> tuple[Field | None, Any]:
    """The argument and value that a deprecated one means; (None, ...) when nothing is left to do."""
    (out.problems if old.status == "removed" else out.warnings).append(old.sentence(shown))
    if not old.target:
        return None, None
    declared = schema().fields[old.target]
    if not old.inverted:
        return declared, value
    try:
        return declared, not understand(declared, value)
    except ValueError as error:
        out.problems.append(f"{shown} {_short(value)}: {error}.")
        return None, None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
