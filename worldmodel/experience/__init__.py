"""Experience models: what happens next, said by a model of one's own or by a server."""
