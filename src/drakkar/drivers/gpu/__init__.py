"""NVIDIA GPUs; see docs/reference/gpu-driver.md."""
