"""Components of tool use, labelled by a classifier or a judge instead of by rule."""
