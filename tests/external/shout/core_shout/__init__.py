"""An API of another package."""
