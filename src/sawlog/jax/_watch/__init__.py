"""``watch``: log what happens inside a function that has no log call.

- ``parameters``: find the parameters among the arguments and give each a name
- ``labels``, ``plan``: follow parameters through a program to the equations that use them
- ``probes``: mark places in functions that the program differentiates itself
- ``interpreter``: evaluate the program with logs added
- ``nonfinite``: find the first equation that made a NaN or an infinity
"""
