"""`advise-mcp`: advice for coding agents, over the Model Context Protocol on standard input and output."""
