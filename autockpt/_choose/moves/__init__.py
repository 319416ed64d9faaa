"""The link between a device and the host: how plans use it whose copies overlap with compute. No torch.

    forward    │ a ──▶ ......... ▶│ gone │             backward   │ fetched ▶ ......... ▶│ read │
                packed       the end of a later call        its backward begins           by a node, or a replay

clock.py    seconds at the ticks of a recorded step
ends.py     calls at whose end a tensor may have left the device
road.py     `Road`: a plan's copies in order, how long the device waits for them, and what fits into a span of time
search.py   looks for plans that move no more than the link takes
"""
