"""`core chat` and `core complete` against a running server, by pipe and at a terminal."""

import contextlib
import io
import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest

from core.commands.main import main
from core_commands.terminal import target
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import run_server
from tests.apis.fake_engine import ANSWERS


@pytest.fixture(scope="module")
def server():
    with run_server(ServerConfig(uvicorn_log_level="warning")) as running:
        yield running


@pytest.fixture
def run(server, monkeypatch, capsys):
    """The command's exit code, standard output and standard error."""

    def call(*words, stdin=None, url=server.url):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin or ""))
        code = main([*words, "--url", url])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_one_message_is_answered_on_standard_output_alone(run):
    assert run("chat", "--quick", "hi") == (0, ANSWERS[0] + "\n", "")
    assert run("chat", "-q", "hi", "--model-name", "alias", "--max-tokens", "5") == (0, "Hello\n", "")
    assert run("complete", "-q", "hi", "--temperature", "0") == (0, ANSWERS[0] + "\n", "")
    assert run("chat", stdin="a pipe is one message\nof two lines\n") == (0, ANSWERS[0] + "\n", "")


def test_a_conversation_goes_on_with_its_system_prompt_and_files(run, tmp_path):
    history, file = tmp_path / "history.json", tmp_path / "notes.txt"
    file.write_text("wörds")
    words = ("chat", "--history", str(history))
    assert run(*words, "-q", "one", "--system-prompt", "Be brief.", "--file", str(file))[0] == 0
    assert run(*words, "-q", "two")[0] == 0
    messages = json.loads(history.read_text())
    assert [message["role"] for message in messages] == ["system", *("user", "assistant") * 2]
    assert messages[0]["content"] == "Be brief."
    assert "notes.txt:\n```\nwörds\n```\n" in messages[1]["content"] and messages[1]["content"].endswith("one")
    assert messages[3]["content"] == "two"
    assert messages[2]["content"] == messages[4]["content"] == ANSWERS[0]


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--quick", ""], "message is empty"),
        (["-q", "x", "--file", "absent.txt"], "absent.txt: cannot be read"),
        (["-q", "x", "--file", "binary"], "no text in UTF-8"),
        (["-q", "x", "--history", "binary"], "no text in UTF-8"),
        (["-q", "x", "--history", "list.json"], "no list of messages"),
        (["-q", "x", "--model-name", "fake-modl"], "server has fake-model, alias. Did you mean 'fake-model'?"),
        (["-q", "x", "--max-tokens", "0"], "--max-tokens 0: expected an integer from 1"),
        (["-q", "x\udcff"], "--quick: no text in UTF-8"),
        (["-q", "x", "--system-prompt", "\udcff"], "--system-prompt: no text in UTF-8"),
        (["-q", "x", "--history", "~nobody-here/x"], "no such home directory"),
        (["-q", "x", "--history", "x" * 300], "cannot be written"),
        (["-q", "x", "--history", "binary/below"], "cannot be written"),
        (["-q", "x", "--max-model-len", "5"], "--url names a server"),
        (["-q", "x", "--sytem-prompt", "5"], "Did you mean '--system-prompt'?"),
    ],
)
def test_mistakes_are_sentences(run, tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    (tmp_path / "list.json").write_text("[1, 2]")
    code, out, told = run("chat", *words)
    is_kept = "cannot be written" in expected  # which is known only when there is an answer to keep
    assert (code, out) == (2, ANSWERS[0] + "\n" if is_kept else "")
    assert expected in told and "Traceback" not in told


def test_what_a_server_refuses_is_told(run):
    code, out, told = run("chat", "-q", "x" * 4000)
    assert (code, out) == (1, "") and "256" in told
    code, _, told = run("chat", "-q", "FAIL")
    assert code == 1 and "not finite" in told
    code, _, told = run("chat", "-q", "x", url="http://127.0.0.1:9")
    assert code == 1 and "no connection" in told


def test_a_pipe_that_is_no_text_or_too_long_is_a_sentence(run, server, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), "utf-8"))
    assert main(["chat", "--url", server.url]) == 2
    assert "Standard input: no text in UTF-8" in capsys.readouterr().err
    monkeypatch.setattr("core_commands.terminal.typed.MOST_CHARACTERS", 10)
    assert "longer than 10 characters" in run("complete", stdin="x" * 11)[2]


async def test_only_a_server_of_ours_is_taken_without_asking(server, monkeypatch):
    monkeypatch.setattr(target, "USUAL_URL", server.url)
    assert await target._usual_server(None) == server.url
    monkeypatch.setattr(target, "USUAL_URL", "http://127.0.0.1:9")
    assert await target._usual_server(None) is None


class Terminal:
    """`core` at a pseudo terminal."""

    def __init__(self, *words):
        self.master, slave = pty.openpty()
        command = [sys.executable, "-P", "-m", "core", *words]
        environ = {**os.environ, "TERM": "xterm", "INPUTRC": "/dev/null"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True, preexec_fn=_control
        )
        os.close(slave)
        self.seen = ""

    def type(self, text):
        os.write(self.master, text.encode())

    def line(self, text):
        """Type a line when it is asked for: keys that come before are not readline's."""
        self.until("> \x1b[0m")
        self.type(text)

    def until(self, words, seconds=30):
        """What came since the last call, up to `words`."""
        deadline = time.monotonic() + seconds
        while words not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
        before, _, self.seen = self.seen.partition(words)
        return before

    def interrupt(self, words):
        """Ctrl-C at a prompt, until `words` come: readline does not see a signal in the moment before it waits for keys."""
        for _ in range(15):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                self.until(words, seconds=2)
                return
        raise AssertionError(self.seen)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def _control():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches the command


@pytest.fixture
def terminal(server):
    opened = Terminal("chat", "--url", server.url)
    yield opened
    opened.close()


@pytest.mark.slow
def test_a_chat_at_a_terminal(terminal, server, tmp_path):
    terminal.until("Ctrl-D to leave")
    terminal.line("hi\n")
    terminal.until(ANSWERS[0])
    assert "tokens in" in terminal.until("out, first after")
    terminal.line("STUCK please\n")
    terminal.until("Hel")
    terminal.type("impatient\x03")  # Ctrl-C stops the answer, not the chat
    shown = terminal.until("stopped")
    assert "impatient" not in shown and "^C" not in shown, "keys are not shown in the middle of an answer"
    server.wait_idle()
    terminal.line("/undo\n")
    terminal.until("Taken back: STUCK please")
    terminal.line('"""first\nsecond"""\n')
    terminal.until(ANSWERS[0])
    terminal.line("/hlp\n")
    terminal.until("Did you mean '/help'?")
    terminal.line("x" * 3000 + "\n")
    terminal.until("core chat: ")
    terminal.line("/retry\n")
    terminal.until(ANSWERS[0])
    terminal.line(f"/save {tmp_path}/chat.json\n")
    terminal.until("4 messages")
    messages = json.loads((tmp_path / "chat.json").read_text())
    assert [message["content"] for message in messages] == ["hi", ANSWERS[0], "first\nsecond", ANSWERS[0]]
    terminal.line("\x04")
    assert terminal.process.wait(10) == 0


def test_an_error_costs_neither_files_nor_the_answer_before(terminal, tmp_path):
    (tmp_path / "notes.txt").write_text("wörds")
    terminal.until("Ctrl-D to leave")
    terminal.line("\x1b[200~several lines\nin one hi\x1b[201~\n")  # as terminals send what is pasted
    terminal.until("out, first after")
    terminal.line(f"/file {tmp_path}/notes.txt\n")
    terminal.until("5 characters")
    terminal.line("FAIL\n")
    terminal.until("core chat: ")
    terminal.line("/retry\n")
    terminal.until("out, first after")
    terminal.line("and now\n")
    terminal.until("out, first after")
    terminal.line("/save /\n")
    terminal.until("cannot be written")
    terminal.line(f"/save {tmp_path}/chat.json\n")
    terminal.until("4 messages")
    messages = json.loads((tmp_path / "chat.json").read_text())
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert messages[0]["content"].endswith("several lines\nin one hi")
    assert messages[2]["content"].endswith("and now")
    assert sum("wörds" in message["content"] for message in messages) == 1


@pytest.mark.slow
def test_a_single_answer_that_is_interrupted_says_so_to_scripts(server):
    opened = Terminal("chat", "--url", server.url, "-q", "STUCK please")
    opened.until("Hel")
    opened.type("\x03")
    opened.until("stopped")
    assert opened.process.wait(10) == 130
    opened.close()
    server.wait_idle()


@pytest.mark.slow
def test_texts_are_continued_at_a_terminal(server):
    opened = Terminal("complete", "--url", server.url)
    opened.until("Each line is continued")
    opened.line("once\n")
    opened.until(ANSWERS[0])
    opened.line("x" * 3000 + "\n")
    opened.until("core complete: ")
    opened.until("> \x1b[0m")
    opened.interrupt("Ctrl-D to leave")
    opened.line("\x04")
    assert opened.process.wait(10) == 0
    opened.close()
