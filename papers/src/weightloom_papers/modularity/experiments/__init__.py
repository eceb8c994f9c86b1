"""Experiments of "On the Modularity of Hypernetworks": Figure 3, and the rates of its theorems.

Each experiment is a folder. It is imported when the experiment is asked for by name.
"""
