"""The program's commands, a file each: ``add`` defines arguments, ``answer`` returns the output.

A command imports what it needs when it runs, for a fast start.
"""
