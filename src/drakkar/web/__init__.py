"""Room `web`; see the architecture page."""
