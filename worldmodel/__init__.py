"""Experience models: text in, text out; knows no environment and no policy loss."""
