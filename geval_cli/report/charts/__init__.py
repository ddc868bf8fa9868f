"""Drawings of runs for pages and reports: figures in, SVG out."""
