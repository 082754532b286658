"""Room `apiserver`; see the architecture page."""
