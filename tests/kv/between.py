"""A machine between two engines, which may change, hold or cut what it passes on."""

import contextlib
import socket
import threading


class Between:
    """A machine between two engines. target: address of the one that answers. pass_on: what becomes of bytes to the other."""

    def __init__(self, target):
        self.target, self.pass_on = target, lambda data: data
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self.server.accept()[0]
                try:
                    far = socket.create_connection(self.target)
                except OSError:  # the engine is gone, and another one may come
                    near.close()
                    continue
                self.open += [near, far]
                for source, target, change in ((near, far, lambda data: data), (far, near, self._changed)):
                    threading.Thread(target=self._copy, args=(source, target, change), daemon=True).start()

    def _changed(self, data):
        return self.pass_on(data)

    def _copy(self, source, target, change):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(change(data))
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def cut(self):
        self.server.close()
        for one in self.open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
