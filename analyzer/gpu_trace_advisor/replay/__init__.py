"""The timeline played again, as it was and with changes."""
