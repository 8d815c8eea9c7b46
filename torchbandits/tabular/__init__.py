"""Tables of candidates: files and data frames, the decision what features each column becomes, and their encoding.

It needs the extra `torchbandits[experiments]`, whose packages are imported when a table is read.
"""
