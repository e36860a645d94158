"""Chat templates: rendering within limits, and the origin of each character."""
