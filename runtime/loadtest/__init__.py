"""Load on any OpenAI-compatible server: workloads, a cheap client, what it measured, comparisons."""
