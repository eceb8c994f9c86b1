"""Experiments: everything the package shows about itself, one folder for each subject."""
