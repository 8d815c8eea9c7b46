"""Tables of candidates: files and data frames, the decision on the features of each column, and their encoding.

It needs the extra `torchbandits[experiments]`, whose packages are imported when a table is read.
"""
