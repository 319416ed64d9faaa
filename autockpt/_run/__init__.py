"""How a plan runs: its segments recompute in backward, exactly as forward ran.

    plan ── patch ──▶ forwards ── frames ──▶ replays ── compare ──▶ what was found

patch/     puts a plan on a model, and takes it off
frames/    how a segment recomputes: open it first
parts/     replays that go in parts
compare/   replays held against their forwards
"""
