"""Worlds that logs come from, one folder or file each."""
