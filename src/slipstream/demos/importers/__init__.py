"""Importers: read demonstrations recorded by other tools and write them as a demos folder.

To add one, see the table in `slipstream.demos.converters`.
"""
