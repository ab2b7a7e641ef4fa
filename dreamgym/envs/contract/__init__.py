"""The contract of an environment, and what checks it: `dreamgym check`."""
