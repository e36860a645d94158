"""The plugins that come with the engine; they use the entry points and contracts that everyone uses."""
