"""Driver ``tpu.drakkar.dev``: slices of TPU pods that span hosts.

:mod:`~drakkar.drivers.tpu.shapes` says which logical devices a grid of hosts offers,
:mod:`~drakkar.drivers.tpu.driver` publishes them and taints those with a lost host,
:mod:`~drakkar.drivers.tpu.connector` has their hosts linked for a claim, and
:mod:`~drakkar.drivers.tpu.host` hands out the chips on each host.
"""

from drakkar.drivers.tpu.driver import TpuDriver
from drakkar.drivers.tpu.shapes import Host, tpu_pool

__all__ = ["Host", "TpuDriver", "tpu_pool"]
