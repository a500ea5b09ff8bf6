"""RealCharacters: turns 2.5D, anime and cartoon character art into realistic photographs."""

__version__ = "0.1.0"
