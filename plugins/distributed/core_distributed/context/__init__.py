"""Context parallelism: ranks that hold the same heads divide keys and values by positions."""
