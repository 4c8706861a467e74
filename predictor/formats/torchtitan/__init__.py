"""torchtitan: TOML and Python, read and written."""
