"""Any MCP server as a real environment: its tools, and tasks from a file."""
