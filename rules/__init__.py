"""Rules, one file each, and as data what they rest on: the documents' claims (facts.toml) and the devices (hardware.toml)."""
