"""What recomputing a run of calls holds, restores and costs, in ticks: open `effects` first. No torch.

effects     a run of calls, once; functions inside may be left alone
parts       a run whose replay goes in parts, to any depth
inside      a run whose replay leaves calls inside it to replays of their own
"""
