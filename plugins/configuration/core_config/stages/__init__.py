"""The stages of a resolution, each of which settles one subject."""
