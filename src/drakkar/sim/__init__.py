"""Room `sim`; see the architecture page."""
