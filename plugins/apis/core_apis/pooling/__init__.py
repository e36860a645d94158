"""The pooling APIs: embeddings, classes and scores."""
