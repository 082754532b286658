"""Driver ``tpu.drakkar.dev``: slices of TPU pods that span hosts.

:mod:`~drakkar.drivers.tpu.shapes` says which logical devices a grid of hosts offers,
:mod:`~drakkar.drivers.tpu.driver` publishes them and taints those with a lost host.
"""

from drakkar.drivers.tpu.driver import TpuDriver
from drakkar.drivers.tpu.shapes import Host, tpu_pool

__all__ = ["Host", "TpuDriver", "tpu_pool"]
