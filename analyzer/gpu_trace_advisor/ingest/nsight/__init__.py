"""Nsight Systems exports: SQLite, Parquet, and reports that nsys exports."""
