"""The papers' commands: reproduce, figures, results, verify.

`weightloom` finds them through entry points; `weightloom.cli.commands` says what such a module
contains.
"""
