"""Demos of ours, written as other people's tools read them."""
