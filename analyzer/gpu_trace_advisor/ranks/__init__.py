"""Several ranks of one run: matched collectives, aligned clocks, who keeps whom waiting."""
