"""The actor of Ray that runs one engine of a group.

Owns: `EngineActor`, the command of one engine as `core serve --headless`. Never does: compute, or import Ray.
Called by: the API server with `--data-parallel-backend ray`, which makes an actor of the class.
"""

from __future__ import annotations

import os
import subprocess

import msgspec

from core.api.errors import CoreError
from core.processes import child_environment, python_command
from core_distributed.hosts.made_key import MadeKey
from core_supervision.death import how_ended
from core_supervision.link.anonymous_file import anonymous_file


class EngineActor:
    """One command. values: its arguments by name, as JSON. secret: see `MadeKey`.

    The command ends in good order when its standard input does, so it outlives neither `stop` nor this process.
    """

    def __init__(self, values: bytes, secret: bytes) -> None:
        self._key = MadeKey(secret)
        given = msgspec.json.decode(values)
        self._values = msgspec.json.encode({**given, "engine_key_file": self._key.path})
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    def run(self) -> None:
        """Run the command to its end. Raises CoreError unless that was asked for."""
        file = anonymous_file("core-engine-arguments", 0)
        try:
            os.write(file, self._values)
            path = f"/proc/{os.getpid()}/fd/{file}"
            command = python_command("core", "serve", "--config", path)
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=child_environment())
            if self._is_over:
                self.stop()
            code = self._process.wait()
        finally:
            os.close(file)
        if not self._is_over:
            raise CoreError(f"its command {how_ended(code)}")

    def stop(self) -> None:
        """Have the command end in good order, and `run` return then."""
        self._is_over = True
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
