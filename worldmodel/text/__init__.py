"""How text becomes tokens and back: edits, prompts, tokenizers, chat templates."""
