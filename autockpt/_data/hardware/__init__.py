"""Devices and hosts: their memory, and how fast they are.

devices.py      devices that people own: memory and what vendors state
paces.py        how fast a host launches and a device computes
rooflines.py    rates of devices, for seconds that nothing has measured
host.py         what the system says of the machine
"""
