"""Pictures in prompts: reading, processing, and the towers whose rows replace embeddings."""
