"""Time and memory of a posterior over many arms as functions of the numbers of arms, dictionary points and pulls.

Our posterior is compared with BoTorch, GPyTorch and scikit-learn, and with a lower bound (the floor) that follows from the
rates of the machine. `running.run_benchmark` runs a configuration, each point in a fresh process; `../bench.py` is its command
line.
"""
