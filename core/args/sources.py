"""Precedence: command line or keyword > YAML file > environment > default. Every value keeps its origin.

Owns: the YAML file, the one environment variable, merging. Never does: derive a value (`core.config` does).
Called by: config, for the command line and for `LLM(...)` alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.api.errors import nearest
from core.args.arg import Given
from core.args.convert import convert
from core.args.schema import schema

ENVIRONMENT = {"CORE_PLUGINS": "plugins"}


@dataclass(slots=True)
class Merged:
    """Every argument of the schema with its origin, and every problem."""

    values: dict[str, Given]
    problems: list[str] = field(default_factory=list)

    def value(self, name: str) -> Any:
        """The value of `name`."""
        return self.values[name].value

    def is_set(self, name: str) -> bool:
        """Whether the user gave `name` in any way."""
        return self.values[name].origin != "default"

    def set_by_user(self) -> tuple[str, ...]:
        """Names of all arguments that the user gave."""
        return tuple(name for name in self.values if self.is_set(name))


def merge(explicit: Mapping[str, Any], environ: Mapping[str, str]) -> Merged:
    """Merge explicit values (plain, or `Given` with an origin) with the YAML file that they may name, and `environ`."""
    out = Merged({})
    layers: list[dict[str, Given]] = [_explicit(explicit, out.problems)]
    config = layers[0].get("config")
    if config is not None and config.value is not None:
        layers.append(_yaml(Path(config.value).expanduser(), out.problems))
    layers.append(_environment(environ, out.problems))
    for name, declared in schema().fields.items():
        given = next((layer[name] for layer in layers if name in layer), None)
        out.values[name] = given if given is not None else Given(declared.default, "default")
    return out


def _explicit(explicit: Mapping[str, Any], problems: list[str]) -> dict[str, Given]:
    plain = {name: value.value if isinstance(value, Given) else value for name, value in explicit.items()}
    layer = _convert(plain, "argument", "{}", problems)
    for name, value in explicit.items():
        if isinstance(value, Given) and name in layer:
            layer[name] = value
    return layer


def _environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, Given]:
    layer: dict[str, Given] = {}
    for variable, name in ENVIRONMENT.items():
        if environ.get(variable):
            layer |= _convert({name: environ[variable]}, f"environment {variable}", variable, problems)
    return layer


def _yaml(path: Path, problems: list[str]) -> dict[str, Given]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"--config {path}: cannot be read: {error}.")
        return {}
    except yaml.YAMLError as error:
        problems.append(f"--config {path}: not valid YAML: {' '.join(str(error).split())}.")
        return {}
    if document is None:
        return {}
    if not isinstance(document, dict):
        problems.append(
            f"--config {path}: expected a mapping of argument names to values, got {type(document).__name__}."
        )
        return {}
    entries = {str(key): value for key, value in document.items()}
    if "config" in entries:
        problems.append(f"--config {path}: a file cannot name another file with 'config'; write one file.")
        del entries["config"]
    return _convert(entries, f"config file {path}", f"{path}: {{}}", problems)


def _convert(plain: Mapping[str, Any], origin: str, label: str, problems: list[str]) -> dict[str, Given]:
    """Convert one layer. label: how a value's name is shown, with `{}` for the name."""
    known = schema()
    layer: dict[str, Given] = {}
    for key, value in plain.items():
        shown = label.format(key)
        declared = known.named(key)
        if declared is None:
            hint = nearest(key.replace("-", "_"), known.fields)
            problems.append(f"{shown}: unknown argument.{hint} See `core serve --help` for all.")
            continue
        if value is None and not declared.optional:
            continue
        try:
            layer[declared.name] = Given(convert(declared, value), origin)
        except ValueError as error:
            text = str(error)
            problems.append(f"{shown} {value!r}: {text if text.endswith(('?', '.')) else text + '.'}")
    return layer
