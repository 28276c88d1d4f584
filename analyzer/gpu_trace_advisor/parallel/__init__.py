"""Recordings read here, in processes or on a cluster."""
