"""Findings, ranked and priced, and the advice that reports show."""
