"""The OpenAI-compatible HTTP server over one or more engines."""
