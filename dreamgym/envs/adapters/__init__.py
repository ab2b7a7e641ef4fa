"""Environments of other shapes as environments over text, and several as one."""
