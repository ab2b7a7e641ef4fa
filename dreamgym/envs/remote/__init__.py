"""Any OpenEnv server as a real environment."""
