"""What is set aside while a step is recorded, and what cannot be.

sandbox.py      leaving no trace
switches.py     switches of transformers' models that work against a plan
own_replays.py  what a model recomputes itself
threads.py      threads that might free what is looked for
"""
