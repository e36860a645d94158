"""Grammar backends that come with the engine."""
