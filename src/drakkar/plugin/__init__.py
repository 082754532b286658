"""Room `plugin`; see the architecture page."""
