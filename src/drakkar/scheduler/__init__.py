"""Room `scheduler`; see the architecture page."""
