"""Judges held against people: how far their scores can be trusted.

The names of this module are for Python programs. They are imported on first use, with the libraries that they need.
"""

from importlib import import_module

from geval_cli.extras.trust.extra import require_statistics

TYPE_CHECKING = False
if TYPE_CHECKING:
    from geval_cli.extras.trust.agreement import Agreement, Options, agree
    from geval_cli.extras.trust.calibration import calibrate
    from geval_cli.extras.trust.calibration_records import Calibrated, CalibrateOptions
    from geval_cli.extras.trust.estimation import Estimated, EstimateOptions, draw_sheet, estimate
    from geval_cli.extras.trust.probe_items import ProbeOptions
    from geval_cli.extras.trust.probes import ProbeReport
    from geval_cli.extras.trust.probing import aprobe, probe
else:
    _NEED_LIBRARIES = {
        "Agreement": "geval_cli.extras.trust.agreement",
        "Options": "geval_cli.extras.trust.agreement",
        "ProbeOptions": "geval_cli.extras.trust.probe_items",
        "ProbeReport": "geval_cli.extras.trust.probes",
        "agree": "geval_cli.extras.trust.agreement",
        "CalibrateOptions": "geval_cli.extras.trust.calibration_records",
        "Calibrated": "geval_cli.extras.trust.calibration_records",
        "aprobe": "geval_cli.extras.trust.probing",
        "calibrate": "geval_cli.extras.trust.calibration",
        "probe": "geval_cli.extras.trust.probing",
    }
    _HOMES = {
        **_NEED_LIBRARIES,
        "EstimateOptions": "geval_cli.extras.trust.estimation",
        "Estimated": "geval_cli.extras.trust.estimation",
        "draw_sheet": "geval_cli.extras.trust.estimation",
        "estimate": "geval_cli.extras.trust.estimation",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _NEED_LIBRARIES:
            require_statistics(f"geval_cli.extras.trust.{name}")
        return getattr(import_module(_HOMES[name]), name)


__all__ = [
    "Agreement",
    "CalibrateOptions",
    "Calibrated",
    "EstimateOptions",
    "Estimated",
    "Options",
    "ProbeOptions",
    "ProbeReport",
    "agree",
    "aprobe",
    "calibrate",
    "draw_sheet",
    "estimate",
    "probe",
]
