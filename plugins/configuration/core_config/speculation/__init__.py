"""Settings of speculative decoding, and the resolution of its draft."""
