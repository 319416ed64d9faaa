"""What is known of steps and plans, and what follows from it: frozen data, pure functions.

machine.py    pure functions from a state, and what is seen, to the next one
state.py      the state, frozen; what is seen as a step begins and as one ends
known.py      kinds of steps that were recorded, and the plans for them
alike.py      one plan for several kinds that begin alike
"""
