"""Judges compared with human labels: how far their scores can be trusted.

The names in this module are meant for Python programs. They are imported on first use, together with the libraries
they need.
"""

from importlib import import_module
from importlib.util import find_spec

from geval_cli.errors import UsageError
from geval_cli.version import install_hint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from geval_cli.extras.trust.agreement import Agreement, agree
    from geval_cli.extras.trust.calibration import Calibrated, calibrate
    from geval_cli.extras.trust.estimation import Estimated, estimate
    from geval_cli.extras.trust.improving import Improvement, improve
    from geval_cli.extras.trust.labelling import draw_pairs, draw_sheet
    from geval_cli.extras.trust.options import (
        AgreeOptions,
        CalibrateOptions,
        CorrectOptions,
        EstimateOptions,
        ImproveOptions,
        ProbeOptions,
    )
    from geval_cli.extras.trust.probes import ProbeReport
    from geval_cli.extras.trust.probing import aprobe, probe
    from geval_cli.extras.trust.true_differences import CorrectedComparison, compare

_HOMES = {
    "agreement": ("Agreement", "agree"),
    "calibration": ("Calibrated", "calibrate"),
    "estimation": ("Estimated", "estimate"),
    "improving": ("Improvement", "improve"),
    "labelling": ("draw_pairs", "draw_sheet"),
    "options": (
        "AgreeOptions",
        "CalibrateOptions",
        "CorrectOptions",
        "EstimateOptions",
        "ImproveOptions",
        "ProbeOptions",
    ),
    "probes": ("ProbeReport",),
    "probing": ("aprobe", "probe"),
    "true_differences": ("CorrectedComparison", "compare"),
}
_NEED_LIBRARIES = ("agreement", "calibration", "improving", "probing")
_LIBRARIES = ("numpy", "scipy")


def __getattr__(name: str) -> object:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home in _NEED_LIBRARIES:
        require_statistics(f"geval_cli.extras.trust.{name}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def require_statistics(what: str) -> None:
    """Raise UsageError if a library that `what` needs is not installed; nothing is imported."""
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        packages = "the package" if len(missing) == 1 else "the packages"
        message = f"{what} needs {packages} {', '.join(missing)}"
        raise UsageError(message, hint=f"install them {install_hint('trust')}")


__all__ = [
    "AgreeOptions",
    "Agreement",
    "CalibrateOptions",
    "Calibrated",
    "CorrectOptions",
    "CorrectedComparison",
    "EstimateOptions",
    "Estimated",
    "ImproveOptions",
    "Improvement",
    "ProbeOptions",
    "ProbeReport",
    "agree",
    "aprobe",
    "calibrate",
    "compare",
    "draw_pairs",
    "draw_sheet",
    "estimate",
    "improve",
    "probe",
]
