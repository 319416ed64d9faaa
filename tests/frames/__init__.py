"""Frames: planned steps must equal plain ones bit for bit, and hold less."""
