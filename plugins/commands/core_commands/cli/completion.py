"""`core completion bash|zsh|fish`: a script that completes commands, flags, choices and plugin names.

Owns: the three scripts; each is static, so that completing starts no Python. Never does: write a shell's start-up file.
Called by: the frame. Plugin names are those installed when the script is made.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.api.errors import UserError, nearest
from core.args.schema import Field, schema
from core.args.show import Section, show
from core.commands.finding import own_commands
from core.commands.overview import overview
from core.plugin.kinds import RESERVED_NAMES
from core.plugin.registry import PluginRegistry
from core_commands.cli.own_options import own_fields
from core_commands.cli.plugin.help import own_arguments, usable_manifests

_INSTALL = (
    ("bash", 'eval "$(core completion bash)", in ~/.bashrc.'),
    ("zsh", 'eval "$(core completion zsh)", in ~/.zshrc after compinit.'),
    ("fish", "core completion fish > ~/.config/fish/completions/core.fish"),
)
_TYPES = frozenset({"int", "float", "str", "bool", "dict", "list"})


@dataclass(frozen=True, slots=True)
class Flag:
    """A completed flag. name: with its dashes. values: its choices. takes_value: false for a switch."""

    name: str
    help: str
    values: tuple[str, ...]
    takes_value: bool


@dataclass(frozen=True, slots=True)
class Words:
    """Everything that a script completes. commands: {command: (help, its subcommands)}."""

    commands: dict[str, tuple[str, tuple[str, ...]]]
    flags: tuple[Flag, ...]


def completion(words: list[str]) -> int:
    """Print the script of one shell; returns the exit code."""
    if not words or words[0] in ("-h", "--help"):
        show("core completion bash|zsh|fish", "Print a completion script.", [Section("Use", _INSTALL)])
        return 0 if words else 2
    shells: dict[str, Callable[[Words], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
    if words[0] not in shells or len(words) > 1:
        wrong = words[1] if words[0] in shells else words[0]
        raise UserError(f"core completion {wrong}: expected one of {', '.join(shells)}.{nearest(wrong, shells)}")
    print(shells[words[0]](collect(overview())), end="")
    return 0


def collect(sections: Sequence[Section]) -> Words:
    """Collect the commands, flags and values of this installation. sections: help about all commands."""
    registry = PluginRegistry()
    flags: list[Flag] = []
    for field in schema().fields.values():
        flags += _flags(field, registry)
    for manifest in usable_manifests(registry):
        for name, kind, text in own_arguments(manifest):
            values = ("true", "false") if kind == "bool" else tuple(set_of(kind))
            flags.append(Flag(name, text, values, True))
    for command in own_commands().values():
        for struct in command.options():
            for field in own_fields(struct):
                flags += _flags(field, registry)
    groups = tuple(schema().titles)
    flags.append(Flag("--help", "Help, or a part of it.", ("all", "listgroup", "page", *groups), False))
    return Words(_commands(sections), tuple(flags))


def _commands(sections: Sequence[Section]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the text and the inner commands of each command."""
    commands: dict[str, tuple[str, tuple[str, ...]]] = {}
    for usage, text in [row for section in sections for row in section.rows]:
        head, *rest = usage.split()
        if head.startswith("-"):
            continue
        alternatives = rest[0].split("|") if rest else []
        own = [word for word in alternatives if word.isalpha() and word.islower()]
        first, inner = commands.get(head, (text, ()))
        commands[head] = (first, (*inner, *own))
    return commands


def set_of(kind: str) -> list[str]:
    """Return the values named by a type such as `auto|int8|none`, without its plain types."""
    values = [part for part in kind.split("|") if part not in _TYPES]
    return values if set(values) - {"none"} else []


def bash(words: Words) -> str:
    """Return the script for bash."""
    commands = " ".join(words.commands)
    own = "\n".join(
        f'        {name}) (( COMP_CWORD == 2 )) && words="{" ".join(inner)}" ;;'
        for name, (_, inner) in words.commands.items()
        if inner
    )
    names = "\n".join(f"        {name}" for name in sorted({flag.name for flag in words.flags}))
    return f"""# Completion of core for bash.
_core() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" flag="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    COMPREPLY=()
    if (( COMP_CWORD == 1 )); then
        COMPREPLY=( $(compgen -W "{commands} --help --version" -- "$cur") )
        return
    fi
    if [[ $cur == "=" ]]; then cur=""
    elif [[ $flag == "=" ]]; then flag="${{COMP_WORDS[COMP_CWORD-2]}}"
    elif [[ $cur == --*=* ]]; then flag="${{cur%%=*}}"; cur="${{cur#*=}}"
    fi
    case "$flag" in
{_cases(words, "        ")}
    esac
    if [[ -n $words ]]; then
        COMPREPLY=( $(compgen -W "$words" -- "$cur") )
        return
    fi
    if [[ $cur == -* ]]; then
        COMPREPLY=( $(compgen -W "$_core_flags" -- "$cur") )
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{own}
    esac
    COMPREPLY=( $(compgen -W "$words" -- "$cur") )
}}
_core_flags="
{names}
"
complete -o default -o bashdefault -F _core core
"""


def zsh(words: Words) -> str:
    """Return the script for zsh."""
    commands = " ".join(_quoted_pair(name, text) for name, (text, _) in words.commands.items())
    own = "\n".join(
        f"        {name}) (( CURRENT == 3 )) && compadd -- {' '.join(inner)} && return ;;"
        for name, (_, inner) in words.commands.items()
        if inner
    )
    flags = "\n".join(f"        {_quoted_pair(flag.name, flag.help)}" for flag in words.flags)
    return f"""#compdef core
# Completion of core for zsh.
_core() {{
    local cur="${{words[CURRENT]}}" flag="${{words[CURRENT-1]}}" words_of_flag=""
    local -a commands flags
    if (( CURRENT == 2 )); then
        commands=( {commands} )
        _describe command commands
        return
    fi
    if [[ $cur == --*=* ]]; then
        flag="${{cur%%=*}}"
        compset -P '*='
    fi
    case "$flag" in
{_cases(words, "        ", variable="words_of_flag")}
    esac
    if [[ -n $words_of_flag ]]; then
        compadd -- ${{=words_of_flag}}
        return
    fi
    if [[ $cur == -* ]]; then
        flags=(
{flags}
        )
        _describe -o argument flags
        return
    fi
    case "${{words[2]}}" in
{own}
    esac
    _files
}}
compdef _core core
"""


def fish(words: Words) -> str:
    """Return the script for fish."""
    lines = ["# Completion of core for fish.", "complete -c core -n __fish_use_subcommand -f"]
    for name, (text, inner) in words.commands.items():
        lines.append(f"complete -c core -n __fish_use_subcommand -a {name} -d {_fish(text)}")
        if inner:
            lines.append(f"complete -c core -n '__fish_seen_subcommand_from {name}' -a {_fish(' '.join(inner))}")
    for flag in words.flags:
        option = f"-l {_fish(flag.name[2:])}" if flag.name.startswith("--") else f"-o {_fish(flag.name[1:])}"
        value = f" -x -a {_fish(' '.join(flag.values))}" if flag.values else " -r" if flag.takes_value else ""
        condition = "-n 'not __fish_use_subcommand'"
        lines.append(f"complete -c core {condition} {option}{value} -d {_fish(_short(flag.help))}")
    return "\n".join(lines) + "\n"


def _flags(field: Field, registry: PluginRegistry) -> list[Flag]:
    """Return every spelling of an argument, including a switch's `--no-...`."""
    values = [str(choice) for choice in field.arg.choices]
    values += [word for word, _ in field.arg.words]
    if not field.is_mapping:
        values += _plugin_names(field, registry)
    unique = tuple(dict.fromkeys(values))
    switch = field.base is bool
    found = [Flag(name, field.arg.help, unique, not switch) for name in field.flags]
    if switch:
        found.append(Flag(f"--no-{field.flag[2:]}", f"Not: {field.arg.help}", (), False))
    for key in field.keys.values():
        choices = tuple(map(str, key.arg.choices))
        if key.base is bool:
            choices = ("true", "false")
        choices += tuple(_plugin_names(key, registry))
        found.append(Flag(f"{field.flag}.{key.name}", key.arg.help, choices, True))
    return found


def _plugin_names(field: Field, registry: PluginRegistry) -> list[str]:
    """Return the names of plugins that an argument or a key can be given; empty where it names none."""
    if field.arg.plugin is None:
        return []
    return ["auto", *(row.name for row in registry.rows(field.arg.plugin) if row.name not in RESERVED_NAMES)]


def _cases(words: Words, indent: str, variable: str = "words") -> str:
    """Return `case` branches that set the values of a flag; flags with equal values share one."""
    by_values: dict[tuple[str, ...], list[str]] = {}
    for flag in words.flags:
        if flag.values:
            by_values.setdefault(flag.values, []).append(flag.name)
    return "\n".join(
        f"{indent}{'|'.join(dict.fromkeys(names))}) {variable}={shlex.quote(' '.join(values))} ;;"
        for values, names in by_values.items()
    )


def _quoted_pair(name: str, text: str) -> str:
    return shlex.quote(name.replace(":", "\\:") + ":" + _short(text))


def _short(text: str) -> str:
    """Return the first sentence of a help text."""
    return text.partition(". ")[0].rstrip(".")


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
