"""An experience model behind a chat server: no training, all from the prompt."""
