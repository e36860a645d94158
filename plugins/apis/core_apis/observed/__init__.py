"""What is measured and traced of a request."""
