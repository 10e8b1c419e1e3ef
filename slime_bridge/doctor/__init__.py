"""Checks before a training: configuration, templates, Slime, server, gateways, router, and a probe task."""

from slime_bridge.doctor.examination import (
    Finding,
    Report,
    Severity,
    run_doctor,
)

__all__ = [
    "Finding",
    "Report",
    "Severity",
    "run_doctor",
]
