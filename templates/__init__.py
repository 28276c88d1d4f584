"""The pages that reports are made of."""
