"""Made for a later engine."""

CONTRACT = 99
