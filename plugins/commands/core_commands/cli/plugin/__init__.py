"""The subcommands of `core plugins`."""
