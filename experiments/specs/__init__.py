"""One TOML file a figure."""
