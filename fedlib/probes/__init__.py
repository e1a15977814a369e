"""The probes, by what they look at."""

from fedlib.probes import classes, landscape, updates  # noqa: F401  each registers its own
from fedlib.probes.base import PROBES, Probe, canonical_probes, observe, parts, sections

__all__ = ["PROBES", "Probe", "canonical_probes", "observe", "parts", "sections"]
