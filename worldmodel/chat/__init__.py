"""Chat servers of OpenAI's protocol: a client, its cache, its failures."""
