"""Time and memory of a posterior over many arms against their number, the dictionary and the pulls.

Our posterior is measured beside BoTorch, GPyTorch and scikit-learn, and beside the floor that follows from the machine's own
rates. `running.run_benchmark` runs a configuration, each point in a fresh process; `../bench.py` is its command line.
"""
