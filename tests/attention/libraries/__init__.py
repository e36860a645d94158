"""Stand-ins for libraries of attention: their published signatures, computed with torch."""
