"""A byte budget inside compiled code: peaks, predicted and measured, and bits."""
