"""Facts of the Kubernetes API shipped as package data (see NOTICE)."""
