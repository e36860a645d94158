"""The files of the page at `/`: no build step, no code from elsewhere. `core.serving.routes.page` serves them."""
