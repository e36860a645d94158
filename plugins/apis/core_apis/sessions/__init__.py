"""Sessions of a server: names for conversations, which keep the tokens of their answers."""
