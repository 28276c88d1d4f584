"""Efficiency tests in pytest."""
