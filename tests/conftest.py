"""Puts this folder on the import path, so that tests can share the builders that lie beside this file."""
