"""Inference that makes tokens: its passes, its floor, its cost."""
