"""Whether `apply(model, budget)` without inputs holds from the first step on, and what its first steps cost."""
