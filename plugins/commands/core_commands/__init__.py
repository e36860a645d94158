"""The commands of `core`: serve, chat, run-batch, bench and the others."""
