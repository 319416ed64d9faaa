"""What a plan means for memory: its timeline, its peak, and what no method could go below.

timeline.py        the predicted memory of a step under a plan
peak_breakdown.py  what the lowest peak consists of, and what would lower it
bound.py           what any method would have to recompute, to hold a plan against
"""
