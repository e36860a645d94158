"""The files of the page at `/`: no build step, no code from elsewhere. `core_apis.routes.page` serves them."""
