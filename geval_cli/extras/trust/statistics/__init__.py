"""Figures of trust: agreement, calibration, true rates and means, drift. Pure: numbers in, numbers out."""
