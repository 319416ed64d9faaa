"""What the nets cost, and whether they raise false alarms. Begin with `__main__`."""
