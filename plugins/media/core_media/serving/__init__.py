"""The engine's part: towers, their rows, and the requests that wait for them."""
