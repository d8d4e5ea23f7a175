"""Specs, figures and the command line: the rooms that know disks and terminals."""
