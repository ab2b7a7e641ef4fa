"""The settings of a run, presets, and overrides."""
