"""Sample traces made by this project, each with its known truth, and the simulator that makes them."""
