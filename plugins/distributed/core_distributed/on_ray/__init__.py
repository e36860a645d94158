"""Ranks in actors of Ray, which the engine places, starts and watches."""
