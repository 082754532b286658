"""Room `api`; see the architecture page."""
