"""A conformance kit for DRA drivers, in any language: it plays the kubelet and says what a driver does wrong.

:func:`run_checks` runs every check of :mod:`drakkar.driver.check.checks` against a :class:`Subject` and returns a
:class:`Report`. Rules: spec/kubelet-protocol.md; `drakkar driver check` is the command.
"""

from drakkar.driver.check.checks import CHECKS, run_checks
from drakkar.driver.check.report import Finding, Report
from drakkar.driver.check.subject import CheckFailed, Subject

__all__ = ["CHECKS", "CheckFailed", "Finding", "Report", "Subject", "run_checks"]
