"""Named reward components from text: rules, a reward model, a judge, their mix."""
