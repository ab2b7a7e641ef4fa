"""A dream for programs and people outside: Gymnasium ids, an OpenEnv server, play."""
