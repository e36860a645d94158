"""Settings of the server, from its arguments and files."""
