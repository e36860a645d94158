"""Stand-ins for libraries of products: their published signatures, computed with torch."""
