"""Recommendation policies for users who leave when they are disappointed (departing bandits).

The public names are listed in `__init__.pyi` and imported on first use, so that `import departing` is fast.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
