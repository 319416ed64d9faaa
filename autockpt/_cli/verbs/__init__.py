"""The commands, a file each.

demo.py, doctor.py, explain.py, fit.py, frontier.py, profile.py, profiles.py, solve.py, verify.py
"""
