"""The program's commands, a file each: ``add`` says what a command takes, ``answer`` returns what it prints.

What a command needs is imported when it runs, so that no command pays for another's.
"""
