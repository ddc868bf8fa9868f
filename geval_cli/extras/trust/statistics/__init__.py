"""Pure statistical functions of trust: agreement, calibration, drift, and true rates and means."""
