"""One device in time: its operations and gaps, what its host threads did, its steps and what repeats."""
