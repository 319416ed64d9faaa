"""The link between a device and the host, as a plan that moves tensors uses it beside the computing. No torch.

    forward    │ a ──▶ ......... ▶│ gone │             backward   │ fetched ▶ ......... ▶│ read │
                packed       the end of another call        that one's backward begins    by a node, or a replay

clock.py    seconds at the ticks of a recorded step
ends.py     at whose end a tensor may have left the device
road.py     `Road`: the copies of a plan in their order, and how long the device waits for them; what fits into a while
search.py   plans that move what the link takes
"""
