"""What planning compiled code takes: GPT-2 XL over fake tensors, and GPT-2 small beside torch's own compiling."""
