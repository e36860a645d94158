"""The loader of models in object stores: s3, gs and az."""
