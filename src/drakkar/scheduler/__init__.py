"""Where pods run and which devices their claims get.

`decide` is pure: a `Cluster` and a pod in, a `Placement` or a `Pending` with its reason out;
explain, plan and the tests call the same function. `Scheduler` is the loop that feeds it from
an API server and writes what it decides.
"""

from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.decide import Decision, Pending, Placement, decide
from drakkar.scheduler.gating import GateScheduler
from drakkar.scheduler.pods import PodView
from drakkar.scheduler.scheduler import Scheduler

__all__ = ["Cluster", "Decision", "GateScheduler", "Pending", "Placement", "PodView", "Scheduler", "decide"]
