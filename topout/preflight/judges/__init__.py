"""Findings of all hosts -> checks, one file a group. Pure functions: no probe, no file, no clock."""
