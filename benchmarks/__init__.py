"""Targets as ratios, each measured side by side in one run; `python -m benchmarks` prints target, measured, verdict."""
