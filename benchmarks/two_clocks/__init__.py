"""Whether a step on two clocks, host and device, takes as long as on a GPU, and what choosing by it saves."""
