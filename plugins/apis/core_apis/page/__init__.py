"""The files of the web page at `/`: no build step, no third-party code. `core_apis.routes.page` serves them."""
