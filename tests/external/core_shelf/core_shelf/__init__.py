"""A KV connector outside the engine's own package."""
