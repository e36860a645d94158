"""The server process: sockets, connections, the event loop, signals, draining."""
