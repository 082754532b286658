"""Drivers that come with the package; each is built from a ``Client`` and a ``Clock`` and has ``async run()``."""
