"""KV pages of other engines, over TCP: the KV connector `tcp`."""
