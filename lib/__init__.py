"""The library under *Noise and Choice*: random transformers as diffusions, dynamic programs made differentiable.

Import the modules, not this package: ``from lib import tokens, two_tokens``.
"""
