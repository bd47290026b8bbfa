"""Gristmill: from one recipe to a small, proven, served language model."""
