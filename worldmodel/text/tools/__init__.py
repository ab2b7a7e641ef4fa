"""Tool calls as text: parsed, matched, checked against schemas, and written."""
