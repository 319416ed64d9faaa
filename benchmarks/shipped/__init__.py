"""How the recorded profiles that come with the package are made: ``python -m benchmarks.shipped``."""
