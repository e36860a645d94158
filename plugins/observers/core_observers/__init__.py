"""What the engine says about itself: metrics and logging."""
