"""Tensors of a segment that wait away from the device.

moved.py      tensors that wait off the device
away.py       FSDP2 units in a replay of several calls
"""
