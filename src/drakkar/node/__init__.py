"""Room `node`; see the architecture page."""
