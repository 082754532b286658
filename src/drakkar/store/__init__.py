"""Room `store`; see the architecture page."""
