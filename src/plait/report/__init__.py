"""Timelines and plans as pages, traces and tables."""
