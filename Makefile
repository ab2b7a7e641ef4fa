.PHONY: check lint test slow bench wheel

check: lint test  ## what a change must pass

lint:  ## format, lint and types
	ruff format --check .
	ruff check .
	pyright --pythonpath "$$(command -v python)"

test:  ## the fast tests
	pytest

slow:  ## learning tests and whole runs, minutes
	pytest -m slow

bench:  ## tokens per second of training, prefill and decode
	python scripts/bench.py

wheel:  ## a wheel in dist/
	python -m build --wheel
