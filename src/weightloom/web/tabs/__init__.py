"""The page's tabs. Each is a module here with ``router(context)``, mounted at ``/api/<tab>``, and a
module ``static/tabs/<tab>.js`` with ``mount(section, tools)``; static/app.js has their titles."""

__all__ = ["TABS"]

TABS = ("draw", "kernels", "sizes", "constructions", "compare", "results")
