"""Transcriptions: sounds, the windows in which they are heard, and what their text looks like."""
