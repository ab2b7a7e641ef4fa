"""Text to named reward components: rules, a learned model, a judge, and their mix."""
