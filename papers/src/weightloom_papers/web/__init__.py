"""The Results tab of the local page, and its export as one HTML file.

`results` is the tab that weightloom finds through its entry point; `data` reads the store in the
worker; `export` writes the file.
"""
