"""The network between machines as the engines of a group will use it."""
