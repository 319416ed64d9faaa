"""Solvers: what they claim is what the judge says, and the exact ones equal brute force. Runs without torch."""
