"""Training loops as people write them, each held against an untouched twin, through the public names only."""
