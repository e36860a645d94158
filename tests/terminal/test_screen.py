"""What a terminal gets of a model's text, and what elsewhere is printed."""

import pytest

from core.commands.main import main
from core.commands.printable import safe
from core_commands.client.chunks import Piece
from core_commands.terminal.screen import Screen


@pytest.fixture
def screen(capsys):
    made = Screen()
    made.is_terminal = made.colours = True
    return made


def test_no_text_of_a_model_moves_the_cursor_or_writes_to_the_clipboard(screen, capsys):
    attack = "\x1b]52;c;cm0=\x07 \x1b[2J \r \x9b1A \x7f a\tb\n"
    assert safe(attack) == "\\x1b]52;c;cm0=\\x07 \\x1b[2J \\x0d \\x9b1A \\x7f a\tb\n"
    screen.show(Piece("text", attack))
    assert "\x1b" not in capsys.readouterr().out
    screen.note(attack)
    assert capsys.readouterr().out.count("\x1b") == 2  # dim, and its end


def test_reasoning_is_apart_from_the_text(screen, capsys):
    for piece in (Piece("reasoning", "hm"), Piece("reasoning", "m"), Piece("text", "Yes"), Piece("call", "f{}")):
        screen.show(piece)
    screen.end()
    assert capsys.readouterr().out == "\x1b[2mhmm\n\x1b[0mYes\n\x1b[2mf{}\n\x1b[0m"


@pytest.mark.parametrize("name, value", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colours_has_words_instead(monkeypatch, capsys, name, value):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    screen = Screen()
    assert screen.prompt("> ") == "> "
    for piece in (Piece("reasoning", "hm"), Piece("text", "a\x1b[1mb")):
        screen.show(piece)
    screen.end()
    screen.note("stopped")
    assert capsys.readouterr().out == "[reasoning] hm\na\\x1b[1mb\nstopped\n"


def test_errors_with_words_of_a_server_are_text_too(monkeypatch, capsys):
    assert main(["chat\x1b]0;x\x07"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_elsewhere_only_the_text_is_printed_as_it_is(capsys):
    screen = Screen()
    for piece in (Piece("reasoning", "hm"), Piece("text", "a\x1b[1mb")):
        screen.show(piece)
    screen.note("stopped")
    screen.end()
    assert capsys.readouterr().out == "a\x1b[1mb\n"
