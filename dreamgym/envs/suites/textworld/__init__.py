"""The games of TextWorldExpress."""
