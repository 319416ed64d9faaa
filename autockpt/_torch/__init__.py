"""torch's own: what is private in it, and the devices that it runs on.

private/   every private name of torch, each behind one small function
devices/   kinds of devices; no other room knows them by name
"""
