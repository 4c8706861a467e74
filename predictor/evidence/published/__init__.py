"""Steps that others measured and published, as configurations: one file per software family.

Nothing here is fitted: a switch follows a column of the table, or the source code and documentation of the software
that the column names, which the file says.
"""
