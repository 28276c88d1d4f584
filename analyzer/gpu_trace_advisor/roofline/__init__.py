"""What each operator had to compute and move, and how long that takes at best."""
