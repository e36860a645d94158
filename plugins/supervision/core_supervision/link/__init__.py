"""The ways between an engine process and its clients: the socket, its messages, and files that both map."""
