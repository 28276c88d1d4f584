"""Comparisons with earlier runs and limits."""
