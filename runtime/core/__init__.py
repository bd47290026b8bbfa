"""Requests, blocks and the scheduler: plain integers, no torch, no numpy, no clock."""
