"""Worlds to work in, and recipes for what is trained in them."""
