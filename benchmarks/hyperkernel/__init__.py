"""The parts of kernels.py: Gram matrices (`gram`), regression on every pixel (`grid`), workers.

Workers run as modules, each in a process of its own. Nothing is imported here, because one of them
runs in an environment without torch.
"""
